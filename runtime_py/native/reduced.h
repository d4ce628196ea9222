// The elements that each result of a reduction is made of.
#pragma once

#include "kernels.h"

namespace kvc {

// The elements of `x` that each element of the result is made of: the loop over the kept
// axes, and the axes that are reduced.
struct Reduced {
  int64_t kept = 1, gone = 1;
  int kept_rank = 0, gone_rank = 0;
  int64_t kept_dims[kMaxRank], kept_strides[kMaxRank];
  int64_t gone_dims[kMaxRank], gone_strides[kMaxRank];

  // `axes`: how many, then which; none, or absent, means all.
  Reduced(const Tensor& x, const int64_t* axes) {
    bool chosen[kMaxRank] = {};
    const bool all = axes[0] == kAbsent || axes[0] == 0 || x.rank == 0;
    for (int i = 0; i < x.rank; ++i) chosen[i] = all;
    for (int64_t i = 0; !all && i < axes[0]; ++i) {
      chosen[axes[1 + i] < 0 ? axes[1 + i] + x.rank : axes[1 + i]] = true;
    }
    for (int i = 0; i < x.rank; ++i) {
      if (chosen[i]) {
        gone *= gone_dims[gone_rank] = x.dims[i];
        gone_strides[gone_rank++] = x.strides[i];
      } else {
        kept *= kept_dims[kept_rank] = x.dims[i];
        kept_strides[kept_rank++] = x.strides[i];
      }
    }
  }

  static int64_t offset(int64_t index, int rank, const int64_t* dims, const int64_t* strides) {
    int64_t found = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
      found += index % dims[axis] * strides[axis];
      index /= dims[axis];
    }
    return found;
  }

  // Calls function(i-th result, element) for all elements, in order.
  template <class T, class F>
  void each(const Tensor& x, int64_t result, const F& function) const {
    const T* base = x.as<const T>() + offset(result, kept_rank, kept_dims, kept_strides);
    if (gone == 0) return;
    const int64_t inner = gone_rank != 0 ? gone_dims[gone_rank - 1] : 1;
    const int64_t step = gone_rank != 0 ? gone_strides[gone_rank - 1] : 0;
    for (int64_t run = 0; run < gone / inner; ++run) {
      const T* row = base + offset(run * inner, gone_rank, gone_dims, gone_strides);
      for (int64_t i = 0; i < inner; ++i) function(row[i * step]);
    }
  }
};

// Contracts: operand x is reduced along `axes`, which are checked, into some results that lie
// together.
inline bool reduced_to(Check& c, const Tensor& x, const int64_t* axes, int results) {
  const Reduced over(x, axes);
  for (int i = 0; i < results; ++i) {
    if (!c.count(i, over.kept) || !c.packed(i)) return false;
  }
  return true;
}
// Along the axis at integer `at`.
inline bool reduced_along(Check& c, const Tensor& x, int64_t at, int results) {
  if (!c.axis(at, x.rank)) return false;
  const int64_t axes[2] = {1, c.integer(at)};
  return reduced_to(c, x, axes, results);
}
// Along the axes at integer *at.
inline bool reduced_along_axes(Check& c, const Tensor& x, int64_t* at, int results) {
  const int64_t first = *at;
  return c.axes(at, x.rank) && reduced_to(c, x, c.step.integers + first, results);
}
// Of all elements.
inline bool reduced_whole(Check& c, const Tensor& x, int results) {
  constexpr int64_t kAllAxes[1] = {0};
  return reduced_to(c, x, kAllAxes, results);
}

}  // namespace kvc
