// The windows of pools over two axes or three: depth, height and width.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels.h"

namespace kvc {

// Positions that a window has along an axis, without those in the padding.
struct Span {
  int64_t begin, end, step;

  int64_t length() const { return end > begin ? (end - begin - 1) / step + 1 : 0; }
};

inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

// The windows along an axis: of one size at one distance, or, if `adaptive`, such that `count`
// of them cover it.
struct Axis {
  int64_t size = 1, count = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;
  bool adaptive = false;

  Span span(int64_t window) const {
    if (adaptive) return {share(window), ceil_share(window + 1), 1};
    const int64_t begin = window * stride - padding;
    const int64_t first = begin < 0 ? ceil_div(-begin, dilation) : 0;
    const int64_t last = std::min(kernel, ceil_div(size - begin, dilation));
    const int64_t start = begin + first * dilation;
    return {start, std::max(start, begin + last * dilation), dilation};
  }

  // The positions of a window, those in the padding too.
  int64_t padded(int64_t window) const {
    const int64_t begin = window * stride - padding;
    return std::min(begin + kernel, size + padding) - begin;
  }

  // The windows whose element number `tap` lies in the tensor: first, end.
  Span windows_with(int64_t tap) const {
    const int64_t offset = padding - tap * dilation, last = size - 1 + offset;
    const int64_t begin = offset > 0 ? ceil_div(offset, stride) : 0;
    return {begin, std::max(begin, last < 0 ? 0 : std::min(count, last / stride + 1)), 1};
  }

  // Turns windows that are adaptive, and all of one size, into such as lie at one distance.
  void settle() {
    if (!adaptive || count == 0 || size % count != 0) return;
    kernel = stride = size / count;
    adaptive = false;
  }

 private:
  // window * size / count without a product that is too large, rounded down, or up.
  int64_t share(int64_t window) const {
    return window / count * size + window % count * size / count;
  }
  int64_t ceil_share(int64_t window) const {
    return window / count * size + ceil_div(window % count * size, count);
  }
};

struct Windows {
  Axis axes[3];
  int64_t planes = 1, rows = 1;  // rows of results, along the width
  // After `place`: of each window along each axis, and, if `by_rows`, for each element that a
  // window has along the width, the windows whose element lies in the tensor.
  Span *spans[3], *taps;

  // Of a result and an operand, without settings.
  Windows(const Tensor& out, const Tensor& x, int rank) : rank_(rank) {
    for (int i = 0; i < x.rank - rank; ++i) planes *= x.dims[i];
    for (int i = 0; i < rank; ++i) {
      axis(i).size = x.dim(i - rank);
      axis(i).count = out.dim(i - rank);
    }
    rows = planes * axes[0].count * axes[1].count;
  }

  // Of windows with the kernel, stride, padding and, if `dilated`, dilation in `integers`,
  // each a list of `rank` numbers; no strides are as large as the kernel. Returns what follows.
  const int64_t* read(const int64_t* integers, bool dilated) {
    const int64_t* stride = integers + 1 + rank_;
    const int64_t* padding = stride + 1 + *stride;
    const int64_t* dilation = padding + 1 + rank_;
    for (int i = 0; i < rank_; ++i) {
      Axis& each = axis(i);
      each.kernel = integers[1 + i];
      each.stride = *stride != 0 ? stride[1 + i] : each.kernel;
      each.padding = padding[1 + i];
      each.dilation = dilated ? dilation[1 + i] : 1;
    }
    return dilated ? dilation + 1 + rank_ : dilation;
  }

  void adapt() {
    for (int i = 0; i < rank_; ++i) {
      axis(i).adaptive = true;
      axis(i).settle();
    }
  }

  int64_t plane() const { return axes[0].size * axes[1].size * axes[2].size; }

  // Elements that each result is made of, about.
  int64_t volume() const {
    int64_t product = 1;
    for (const Axis& each : axes) {
      const int64_t wide = each.adaptive ? each.size / std::max<int64_t>(1, each.count) + 1 : each.kernel;
      product *= std::min(each.size, wide);
    }
    return product;
  }

  // Whether rows are better computed for all windows at once than window by window.
  bool by_rows() const { return !axes[2].adaptive && axes[2].count >= axes[2].kernel; }

  // Finds where all windows lie. Returns false if there is no memory.
  bool place(const Context& context) {
    int64_t number = by_rows() ? axes[2].kernel : 0;
    for (const Axis& each : axes) number += each.count;
    auto* next = static_cast<Span*>(context.workspace(number * sizeof(Span)));
    if (next == nullptr) return false;
    for (int i = 0; i < 3; ++i) {
      spans[i] = next;
      for (int64_t window = 0; window < axes[i].count; ++window) *next++ = axes[i].span(window);
    }
    taps = next;
    for (int64_t tap = 0; by_rows() && tap < axes[2].kernel; ++tap) taps[tap] = axes[2].windows_with(tap);
    return true;
  }

 private:
  int rank_;
  Axis& axis(int i) { return axes[3 - rank_ + i]; }
};

// A row of windows: the plane and the positions that all of them have.
struct WindowRow {
  int64_t plane, depth, height;  // the last two count windows
  Span deep, high;

  WindowRow(const Windows& windows, int64_t row) {
    height = row % windows.axes[1].count;
    row /= windows.axes[1].count;
    depth = row % windows.axes[0].count;
    plane = row / windows.axes[0].count;
    deep = windows.spans[0][depth];
    high = windows.spans[1][height];
  }

  // Calls function with where each row of the plane begins that the windows have.
  template <class F>
  void each(const Windows& windows, const F& function) const {
    for (int64_t d = deep.begin; d < deep.end; d += deep.step) {
      for (int64_t h = high.begin; h < high.end; h += high.step) {
        function((d * windows.axes[1].size + h) * windows.axes[2].size);
      }
    }
  }
};

}  // namespace kvc
