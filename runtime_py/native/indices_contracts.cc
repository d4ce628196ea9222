// Contracts of the kernels in indices.cc, which check all indices before the first write.
#include <algorithm>

#include "family_contracts.h"
#include "kernels.h"

namespace kvc {
namespace {

// What becomes of `axes` of an operand: the dims of the result in place of one.
Tensor with_size(Tensor shape, int axis, int64_t size) {
  shape.dims[axis] = size;
  return shape;
}

// No dim of the index is larger than that of an operand, but along `axis`; -1: along none.
bool within(Check& c, int index, int whole, int axis) {
  if (!c.rank(index, c[whole].rank, c[whole].rank)) return false;
  for (int d = 0; d < c[index].rank; ++d) {
    if (d == axis) continue;
    if (!c.holds(c[index].dims[d] <= c[whole].dims[d], "an index larger than its operand", d))
      return false;
  }
  return true;
}

// Integers: an axis of x, first.
bool along(Check& c, int x, int index, int* axis) {
  return c.rank(x, 1) && c.index(index) && c.axis(0, c[x].rank, axis);
}

// Elements of the source go to places in the result.
bool scattered(Check& c, bool from_source, DTypes dtypes) {
  int axis;
  return c.dtype(0, dtypes) && along(c, 0, 1, &axis) && within(c, 1, 0, axis) &&
         (!from_source || (c.same_dtype(2, 0) && within(c, 1, 2, -1)));
}

bool slices(Check& c, int integers, int numbers, DTypes dtypes) {
  int axis;
  const bool right = c.operands(1, 3) && c.settings(integers, numbers) && c.dtype(0, dtypes) &&
                     c.same_dtype(2, 0) && along(c, 0, 1, &axis) && c.rank(2, c[0].rank, c[0].rank);
  if (!right) return false;
  const int64_t count = c[1].count();
  return c.size(2, axis, count) &&
         c.holds(repeats_to(c[2], with_size(c[0], axis, count)), "shape of slices");
}

// The shape of what `given` indices, operands from `first` on, pick of x; see `Picked`.
class PickedShape {
 public:
  Tensor shape{};

  bool find(Check& c, const Tensor& x, int first, int given) {
    return read_axes(c, x, first, given) && read_sizes(c, first) && join(c, x);
  }

 private:
  int kept_[kMaxRank], picked_[kMaxRank], kept_rank_ = 0, picked_rank_ = 0, place_ = 0, width_ = 0;
  int64_t sizes_[kMaxRank];

  bool read_axes(Check& c, const Tensor& x, int first, int given) {
    bool together = true;
    for (int axis = 0; axis < x.rank; ++axis) {
      if (axis >= given || !c[first + axis]) {
        kept_[kept_rank_++] = axis;
        continue;
      }
      if (!c.index(first + axis)) return false;
      if (picked_rank_ == 0) place_ = axis;
      together = together && (picked_rank_ == 0 || axis == picked_[picked_rank_ - 1] + 1);
      picked_[picked_rank_++] = axis;
      width_ = std::max(width_, static_cast<int>(c[first + axis].rank));
    }
    if (!together) place_ = 0;
    return c.holds(kept_rank_ + width_ <= kMaxRank, "rank of what is picked", kept_rank_, width_);
  }

  bool read_sizes(Check& c, int first) {
    std::fill_n(sizes_, kMaxRank, 1);
    for (int i = 0; i < picked_rank_; ++i) {
      const Tensor& one = c[first + picked_[i]];
      int64_t* sizes = sizes_ + (width_ - one.rank);
      for (int d = 0; d < one.rank; ++d) {
        if (one.dims[d] == 1) continue;
        if (!c.holds(sizes[d] == 1 || sizes[d] == one.dims[d], "indices differ in shape", d))
          return false;
        sizes[d] = one.dims[d];
      }
    }
    return true;
  }

  bool join(Check& c, const Tensor& x) {
    int64_t count = 1;
    shape.rank = kept_rank_ + width_;
    for (int d = 0; d < shape.rank; ++d) {
      const bool picked = d >= place_ && d < place_ + width_;
      shape.dims[d] = picked ? sizes_[d - place_] : x.dims[kept_[d < place_ ? d : d - width_]];
      count = bounded_product(count, std::max<int64_t>(1, shape.dims[d]));
    }
    return c.holds(count <= kMostCount, "too many elements", count);
  }
};

uint64_t bits(int first, int count) { return ((uint64_t{1} << count) - 1) << first; }

}  // namespace

bool embedded(Check& c) {
  return c.operands(1, 3) && c.same_dtype(0, 1) && c.rank(1, 2, 2) && c.index(2) && c.packed(0) &&
         c.count(0, bounded_product(c[2].count(), c[1].dims[1]));
}

// Scales are those of rows, or of parts of rows.
bool embedded_q8(Check& c) {
  const bool right = c.operands(1, 4) && c.dtype(0, kFloat) && c.dtype(1, only(DType::kInt8)) &&
                     c.dtype(2, kFloat) && c.index(3) && c.rank(1, 2, 2) && c.rank(2, 1, 2) &&
                     c.size(2, 0, c[1].dims[0]) && c.packed(0) &&
                     c.count(0, bounded_product(c[3].count(), c[1].dims[1]));
  if (!right || c[2].rank == 1) return right;
  const int64_t width = c[1].dims[1], parts = c[2].dims[1];
  return c.holds(parts > 0 && width % parts == 0, "parts of rows", width, parts);
}

bool index_selected(Check& c) {
  int axis;
  const bool right = c.operands(1, 3) && c.settings(1) && c.same_dtype(0, 1) &&
                     along(c, 1, 2, &axis) && c.rank(0, c[1].rank, c[1].rank);
  if (!right) return false;
  const Tensor made = with_size(c[1], axis, c[2].count());
  return c.holds(std::equal(made.dims, made.dims + made.rank, c[0].dims), "shape of a result");
}

bool slices_written(Check& c) { return slices(c, 1, 0, kAll); }
bool slices_added(Check& c) { return slices(c, 2, 1, kTypes); }

bool gathered(Check& c) {
  int axis;
  return c.operands(1, 3) && c.settings(1) && c.same_dtype(0, 1) && along(c, 1, 2, &axis) &&
         within(c, 2, 1, axis) && c.same_shape(0, 2);
}

bool elements_scattered(Check& c) {
  return c.operands(1, 3) && c.settings(1) && scattered(c, true, kAll);
}
bool value_scattered(Check& c) {
  return c.operands(1, 2) && c.settings(2, 1) && scattered(c, false, kTypes);
}
bool elements_added(Check& c) {
  return c.operands(1, 3) && c.settings(1) && scattered(c, true, kTypes);
}
bool elements_reduced(Check& c) {
  return c.operands(1, 3) && c.settings(3) && scattered(c, true, kTypes);
}

bool indexed(Check& c) {
  PickedShape picked;
  if (!c.settings(1) || !c.between(0, 0, kMaxRank)) return false;
  const int given = static_cast<int>(c.integer(0));
  const bool right = c.operands(1, 2 + given, bits(2, given)) && c.same_dtype(0, 1) &&
                     c.rank(1, given) && picked.find(c, c[1], 2, given) &&
                     c.rank(0, picked.shape.rank, picked.shape.rank);
  const Tensor& made = picked.shape;
  return right &&
         c.holds(std::equal(made.dims, made.dims + made.rank, c[0].dims), "shape of a result");
}

bool put_at_indices(Check& c) {
  PickedShape picked;
  if (!c.settings(2) || !c.between(0, 0, kMaxRank)) return false;
  const int given = static_cast<int>(c.integer(0));
  return c.operands(1, 2 + given, bits(1, given)) && c.same_dtype(1 + given, 0) &&
         (c.integer(1) == 0 || c.dtype(0, kTypes)) && c.rank(0, given) &&
         picked.find(c, c[0], 1, given) &&
         c.holds(repeats_to(c[1 + given], picked.shape), "shape of values");
}

}  // namespace kvc
