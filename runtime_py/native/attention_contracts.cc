// Contracts of attention: that over a cache, and the plain one.
#include <algorithm>

#include "family_contracts.h"
#include "kernels.h"

namespace kvc {
namespace {

constexpr DTypes kCached = kFloat | only(DType::kFloat16) | only(DType::kInt8);

// A cache [batch, groups, slots, width], or its scales [batch, groups, slots, ..].
bool of_cache(Check& c, int i, int k, DTypes dtypes) {
  const bool right = c.dtype(i, dtypes) && c.rank(i, 3, 4);
  return right && c.size(i, 0, c[k].dims[0]) && c.size(i, 1, c[k].dims[1]) &&
         c.size(i, 2, c[k].dims[2]);
}

// A vector of at least `least` elements, by its stride.
bool of_each(Check& c, int i, int64_t least, DTypes dtypes) {
  return c.dtype(i, dtypes) && c.rank(i, 1, 1) &&
         c.holds(c[i].dims[0] >= least, "elements of an operand", i);
}

bool lengths(Check& c, int i, int64_t batch) {
  return c.index(i, only(DType::kInt64)) && of_each(c, i, batch, only(DType::kInt64));
}

// [1 or batch, 1 or heads, seq, any number of keys].
bool mask_of(Check& c, int i) {
  if (!c[i]) return true;
  const int64_t* dims = c[i].dims;
  return c.dtype(i, kFloat | kBools) && c.rank(i, 4, 4) && c.size(i, 2, c[1].dims[2]) &&
         c.holds(dims[0] == 1 || dims[0] == c[1].dims[0], "rows of a mask", dims[0]) &&
         c.holds(dims[1] == 1 || dims[1] == c[1].dims[1], "heads of a mask", dims[1]);
}

bool bound(Check& c, int64_t at) {
  return c.holds(c.integer(at) == kAbsent || c.integer(at) >= 0, "an integer out of range", at,
                 c.integer(at));
}

// Sizes of what threads keep between: partial results of all queries and pieces of keys.
bool within_memory(Check& c) {
  constexpr int64_t kRows = 32, kKeys = 256;
  const Tensor &q = c[1], &k = c[2], &v = c[3];
  int64_t cells = bounded_product(q.dims[0], std::max<int64_t>(1, k.dims[1]));
  cells = bounded_product(cells, std::max<int64_t>(1, q.dims[2]));
  cells = bounded_product(cells, k.dims[2] / kKeys + 3);
  cells = bounded_product(cells, kRows * (v.dims[3] + 4));
  return c.holds(cells <= kMostProduct, "too many elements", cells);
}

// How many elements of x a part of the result passes along its axes before the last two.
bool parts_of(Check& c, int i) {
  const Tensor &out = c[0], &x = c[i];
  for (int axis = 0; axis < x.rank - 2; ++axis) {
    const int64_t whole = out.dims[axis + out.rank - x.rank], own = x.dims[axis];
    if (!c.holds(whole == own || (own > 0 && whole % own == 0), "parts of an operand", i, axis))
      return false;
  }
  return true;
}

// Operand i is a matrix [rows, columns] for parts of the result.
bool matrices(Check& c, int i, int64_t rows, int64_t columns) {
  return c.same_dtype(i, 0) && c.rank(i, 2, c[0].rank) && c.size(i, -2, rows) &&
         c.size(i, -1, columns) && parts_of(c, i);
}

}  // namespace

// Results: [batch, heads, seq, value_width]. Arguments: q, k, v, valid_length, mask?, slopes?,
// sinks?, k_scale?, v_scale?, row_lengths?.
bool attended(Check& c) {
  if (!c.operands(1, 11, 0b11111100000) || !c.settings(5, 2)) return false;
  for (int i = 0; i < 4; ++i) {
    if (!c.rank(i, 4, 4) || !c.dtype(i, i < 2 ? kFloat : kCached)) return false;
  }
  const Tensor &q = c[1], &k = c[2];
  const int64_t batch = q.dims[0], heads = q.dims[1], groups = k.dims[1];
  const bool shaped =
      c.packed(0) && c.same_leading(0, 1, 1) && c.size(0, -1, c[3].dims[3]) &&
      c.size(2, 0, batch) && c.size(2, 3, q.dims[3]) && of_cache(c, 3, 2, kCached) &&
      c.holds(groups > 0 && heads % groups == 0, "heads of a group", heads, groups) &&
      c.holds(heads > 0, "no heads");
  if (!shaped) return false;
  const auto given = [&c](int i) { return static_cast<bool>(c[i]); };
  return lengths(c, 4, batch) && mask_of(c, 5) && (!given(6) || of_each(c, 6, heads, kFloat)) &&
         (!given(7) || of_each(c, 7, heads, kFloat)) && (!given(8) || of_cache(c, 8, 2, kFloat)) &&
         (!given(9) || of_cache(c, 9, 2, kFloat)) && (!given(10) || lengths(c, 10, batch)) &&
         bound(c, 1) && bound(c, 2) && c.between(4, 0, k.dims[2]) && within_memory(c);
}

bool plainly_attended(Check& c) {
  const bool right = c.operands(1, 5, 0b10000) && c.settings(1, 1) && c.dtype(0, kWideFloats) &&
                     c.rank(0, 2) && c.packed(0) && c.rank(1, 2) && c.rank(2, 2);
  if (!right) return false;
  const int64_t queries = c[0].dim(-2), values = c[0].dim(-1), keys = c[2].dim(-2),
                width = c[1].dim(-1);
  if (!matrices(c, 1, queries, width) || !matrices(c, 2, keys, width) ||
      !matrices(c, 3, keys, values))
    return false;
  if (!c.holds(bounded_product(keys, values + width) <= kMostProduct, "too many elements", keys))
    return false;
  const Tensor& mask = c[4];
  if (!mask) return true;
  const auto repeats = [&mask](int axis, int64_t size) {
    return -axis > mask.rank || mask.dim(axis) == 1 || mask.dim(axis) == size;
  };
  return c.dtype(4, only(c[0].dtype) | kBools) && c.rank(4, 0, c[0].rank) && parts_of(c, 4) &&
         c.holds(repeats(-1, keys) && repeats(-2, queries), "shape of a mask");
}

}  // namespace kvc
