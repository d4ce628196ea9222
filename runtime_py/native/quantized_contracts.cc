// Contracts of products of quantized rows: those of quantized_products.cc, and of experts.
#include <algorithm>

#include "family_contracts.h"
#include "kernels.h"
#include "products.h"
#include "row_sources.h"

namespace kvc {
namespace {

constexpr DTypes kBytes = only(DType::kInt8);
constexpr DTypes kInt4Scales = kFloat | kHalves;
constexpr DTypes kInt4Minimums = kFloat | only(DType::kFloat16);

int64_t blocks_of(int64_t depth) { return (depth + kBlock - 1) / kBlock; }

// An operand that has `width` elements for each row of q, which lie together.
bool beside_rows(Check& c, int i, int q, int64_t width, DTypes dtypes) {
  return c.dtype(i, dtypes) && c.same_leading(i, q, 1) && c.size(i, -1, width) && c.packed(i);
}

// Rows as they were quantized, operands from `q` on: int8, their scales, zeros and, if there are
// blocks, factors.
bool int8_rows(Check& c, int q, bool in_blocks) {
  if (!c.rank(q, 1) || !c.dtype(q, kBytes) || !c.packed(q)) return false;
  const int64_t depth = c[q].dim(-1);
  if (!c.holds(depth > 0, "rows without elements") || !beside_rows(c, q + 1, q, 1, kFloat))
    return false;
  if (!in_blocks) return beside_rows(c, q + 2, q, 1, only(DType::kInt32));
  return beside_rows(c, q + 2, q, blocks_of(depth), kBytes) &&
         beside_rows(c, q + 3, q, blocks_of(depth), kBytes);
}

// int8 [.., columns, depth], and scales of each column, or of parts of it. `experts`: dims before
// the columns, 0 or 1.
bool int8_weight(Check& c, int w, int experts, int64_t columns, int64_t depth) {
  const int scale = w + 1;
  const bool right = c.rank(w, experts + 2, experts + 2) && c.dtype(w, kBytes) && c.packed(w) &&
                     c.size(w, -2, columns) && c.size(w, -1, depth) && c.dtype(scale, kFloat) &&
                     c.rank(scale, experts + 1, experts + 2) && c.packed(scale) &&
                     c.size(scale, 0, c[w].dims[0]) && c.size(scale, experts, columns);
  if (!right || c[scale].rank == experts + 1) return right;
  const int64_t parts = c[scale].dim(-1);
  return c.holds(parts == 1 || (parts > 1 && depth % (parts * kBlock) == 0), "parts of rows", parts,
                 depth);
}

// uint8 [columns / 8, depth / 8, 8, 4], and scales [columns / 8, m, 8] of m blocks.
bool int4_weight(Check& c, int w, int64_t columns, int64_t depth) {
  const int scale = w + 1;
  const bool right = c.rank(w, 4, 4) && c.dtype(w, only(DType::kUInt8)) && c.packed(w) &&
                     c.holds(columns % kInt4Columns == 0 && depth % kInt4 == 0,
                             "sizes of an int4 weight", columns, depth) &&
                     c.size(w, 0, columns / kInt4Columns) && c.size(w, 1, depth / 8) &&
                     c.size(w, 2, kInt4Columns) && c.size(w, 3, 4) && c.rank(scale, 3, 3) &&
                     c.dtype(scale, kInt4Scales) && c.packed(scale) &&
                     c.size(scale, 0, columns / kInt4Columns) && c.size(scale, 2, kInt4Columns);
  if (!right) return false;
  const int64_t blocks = c[scale].dims[1];
  return c.holds(blocks > 0 && depth % (blocks * kInt4) == 0, "blocks of an int4 weight", blocks,
                 depth);
}

// The operands of a product from `w` on: weight, scale, bias?, and minimum? where there is one.
bool weight_of(Check& c, int w, bool may_have_minimums, int64_t columns, int64_t depth) {
  const bool int8 = c[w].dtype == DType::kInt8;
  if (!(int8 ? int8_weight(c, w, 0, columns, depth) : int4_weight(c, w, columns, depth)))
    return false;
  if (!c.vector_or_none(w + 2, columns, kFloat)) return false;
  if (!may_have_minimums || !c[w + 3]) return true;
  return c.holds(!int8, "minimums of an int8 weight") && c.dtype(w + 3, kInt4Minimums) &&
         c.same_shape(w + 3, w + 1) && c.packed(w + 3);
}

bool multiplied(Check& c, bool in_blocks) {
  const int w = in_blocks ? 5 : 4;
  if (!c.holds(c.step.tensor_count > w, "number of operands", c.step.tensor_count)) return false;
  const bool minimums = in_blocks && c[w].dtype != DType::kInt8;
  const bool right = c.operands(1, w + (minimums ? 4 : 3), uint64_t{0b1100} << w) &&
                     c.dtype(0, kFloat) && int8_rows(c, 1, in_blocks) && c.same_leading(0, 1, 1) &&
                     c.packed(0);
  return right && weight_of(c, w, minimums, c[0].dim(-1), c[1].dim(-1));
}

// A row chooses its expert; rows may have gaps, since they are copied.
bool by_experts(Check& c, int row_operands) {
  const int w = row_operands + 1, experts = w + 2;
  if (!c.operands(1, w + 4, uint64_t{1} << (w + 3)) || !c.index(experts) || !c.dtype(0, kFloat))
    return false;
  const int64_t rows = c[experts].count();
  for (int i = 0; i < w; ++i) {
    if (!c.rank(i, 2, 2) || !c.size(i, 0, rows)) return false;
  }
  const int64_t columns = c[0].dims[1], depth = c[1].dims[1], blocks = blocks_of(depth);
  const bool in_blocks = row_operands == 4;
  const bool right = c.holds(depth > 0, "rows without elements") && c.dtype(1, kBytes) &&
                     c.dtype(2, kFloat) && c.size(2, 1, 1) &&
                     c.dtype(3, in_blocks ? kBytes : only(DType::kInt32)) &&
                     c.size(3, 1, in_blocks ? blocks : 1) &&
                     (!in_blocks || (c.dtype(4, kBytes) && c.size(4, 1, blocks)));
  if (!right || !int8_weight(c, w, 1, columns, depth)) return false;
  const int bias = w + 3;
  return !c[bias] || (c.dtype(bias, kFloat) && c.rank(bias, 2, 2) &&
                      c.size(bias, 0, c[w].dims[0]) && c.size(bias, 1, columns) && c.packed(bias));
}

// What makes the rows, operands from x on: kvc::glu of two, or aten::rms_norm with a weight.
bool source_of(Check& c, int64_t kind, int x) {
  if (!c.holds(c[x].data != nullptr, "an operand is left out", x) || !c.dtype(x, kFloat) ||
      !c.rank(x, 1))
    return false;
  if (!c.holds(c[x].dim(-1) > 0, "rows without elements")) return false;
  if (kind == RowSource::kNone) return true;
  if (kind == RowSource::kNorm)
    return c.settings(3, 1) && c.vector_or_none(x + 1, c[x].dim(-1), kFloat);
  return c.holds(c[x + 1].data != nullptr, "an operand is left out", x + 1) &&
         c.dtype(x + 1, kFloat) && c.same_shape(x + 1, x);
}

}  // namespace

bool rows_quantized(Check& c) {
  return c.operands(3, 4) && c.dtype(3, kFloat) && c.dtype(0, kBytes) && c.rank(3, 1) &&
         c.same_shape(0, 3) && c.packed(0) && beside_rows(c, 1, 0, 1, kFloat) &&
         beside_rows(c, 2, 0, 1, only(DType::kInt32));
}

bool blocks_quantized(Check& c) {
  const bool right = c.operands(4, 5) && c.dtype(4, kFloat) && c.dtype(0, kBytes) && c.rank(4, 1) &&
                     c.same_shape(0, 4) && c.packed(0) && beside_rows(c, 1, 0, 1, kFloat);
  if (!right) return false;
  const int64_t blocks = blocks_of(c[0].dim(-1));
  return beside_rows(c, 2, 0, blocks, kBytes) && beside_rows(c, 3, 0, blocks, kBytes);
}

bool quantized_rows_multiplied(Check& c) { return multiplied(c, false); }
bool quantized_blocks_multiplied(Check& c) { return multiplied(c, true); }
bool quantized_rows_multiplied_by_experts(Check& c) { return by_experts(c, 3); }
bool quantized_blocks_multiplied_by_experts(Check& c) { return by_experts(c, 4); }

bool rows_quantized_and_multiplied(Check& c) {
  if (!c.settings(3) || !c.between(0, RowSource::kNone, RowSource::kNorm)) return false;
  const int64_t kind = c.integer(0);
  const int count = c.step.tensor_count / 5, sources = kind == RowSource::kNone ? 1 : 2, x = count;
  c.results = count;
  if (!c.holds(count > 0 && c.step.tensor_count == 5 * count + sources, "number of operands",
               count))
    return false;
  if (!source_of(c, kind, x)) return false;
  const int first = x + sources;
  for (int i = 0; i < count; ++i) {
    const int w = first + 4 * i;
    const bool right = c.holds(c[i] && c[w] && c[w + 1], "an operand is left out", i) &&
                       c.dtype(i, kFloat) && c.packed(i) && c.same_leading(i, x, 1) &&
                       c.same_dtype(w, first) && weight_of(c, w, true, c[i].dim(-1), c[x].dim(-1));
    if (!right) return false;
    const auto parts = [&c](int w) { return c[w + 1].rank == 2 ? c[w + 1].dims[1] : 1; };
    const bool alike = c[w].dtype != DType::kInt8 || parts(w) == parts(first);
    if (!c.holds(alike, "weights differ in their parts", i)) return false;
  }
  return true;
}

}  // namespace kvc
