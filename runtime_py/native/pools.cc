// Pools: the average or the maximum of windows, over two axes or three.
//
// Many narrow windows are computed a row at once: an element of each window after the other, so
// that neighbours lie together. Others are computed one by one.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "elements.h"
#include "kernels.h"
#include "lane_sums.h"
#include "types.h"
#include "windows.h"

namespace kvc {
namespace {

constexpr int64_t kSideBySide = 8;  // windows that are worth it to be computed at once

// Calls function with a distance of elements; those that compilers know are fast.
template <class F>
void with_stride(int64_t stride, const F& function) {
  if (stride == 1) return function(std::integral_constant<int64_t, 1>{});
  if (stride == 2) return function(std::integral_constant<int64_t, 2>{});
  function(stride);
}

// Calls function with ranges of rows of windows.
template <class F>
void for_window_rows(const Windows& windows, const Context& context, const F& function) {
  const int64_t work = std::max<int64_t>(1, windows.axes[2].count * windows.volume());
  parallel(windows.rows, std::max<int64_t>(1, kGrain / work), context.threads,
           [&](int64_t begin, int64_t end, int) { function(begin, end); });
}

// Averages.

template <class T>
void add_strided(const T* __restrict x, int64_t stride, int64_t n, T* __restrict sums) {
  with_stride(stride, [&](auto step) {
    for (int64_t i = 0; i < n; ++i) sums[i] += x[i * step];
  });
}

// What the sums of windows are divided by.
struct Divisors {
  bool padded;    // whether positions in the padding count
  int64_t fixed;  // for all windows, or kAbsent

  int64_t along(const Windows& windows, int axis, int64_t window) const {
    if (fixed != kAbsent) return axis == 2 ? fixed : 1;
    return padded ? windows.axes[axis].padded(window) : windows.spans[axis][window].length();
  }
};

// Windows without elements stay 0. Integers are divided towards zero, and wrap around.
template <class T>
T average_of(T sum, T divisor) {
  if (std::is_integral_v<T> && divisor == static_cast<T>(-1)) return -sum;
  return divisor == 0 ? sum : sum / divisor;
}

// Sums up whole rows first, in `columns`, and then what each window has of them.
template <class T>
void sum_row(const Windows& windows, const WindowRow& row, const T* plane, T* columns, T* sums) {
  const Axis& wide = windows.axes[2];
  std::fill(columns, columns + wide.size, T{});
  row.each(windows, [&](int64_t at) { add_strided(plane + at, 1, wide.size, columns); });
  std::fill(sums, sums + wide.count, T{});
  if (windows.by_rows() && wide.count >= kSideBySide) {
    for (int64_t tap = 0; tap < wide.kernel; ++tap) {
      const Span within = windows.taps[tap];
      const T* from = columns + within.begin * wide.stride - wide.padding + tap;
      add_strided(from, wide.stride, within.end - within.begin, sums + within.begin);
    }
    return;
  }
  for (int64_t i = 0; i < wide.count; ++i) {
    const Span span = windows.spans[2][i];
    for (int64_t w = span.begin; w < span.end; ++w) sums[i] += columns[w];
  }
}

// The sum of windows that are as wide as the plane, so that their rows lie together.
template <class T>
T sum_whole_rows(const Windows& windows, const WindowRow& row, const T* plane) {
  const int64_t width = windows.axes[2].size, n = row.high.length() * width;
  double sum = 0;
  for (int64_t d = row.deep.begin; d < row.deep.end; ++d) {
    sum += run_sum(plane + (d * windows.axes[1].size + row.high.begin) * width, n);
  }
  return static_cast<T>(sum);
}

template <class T>
void average_row(const Windows& windows, const WindowRow& row, const Divisors& divisors, const T* plane,
                 const T* lengths, T* columns, T* sums) {
  const Axis& wide = windows.axes[2];
  if (std::is_floating_point_v<T> && wide.count == 1 && windows.spans[2][0].length() == wide.size) {
    sums[0] = sum_whole_rows(windows, row, plane);
  } else {
    sum_row(windows, row, plane, columns, sums);
  }
  const T rows = static_cast<T>(divisors.along(windows, 0, row.depth) * divisors.along(windows, 1, row.height));
  for (int64_t i = 0; i < wide.count; ++i) sums[i] = average_of(sums[i], rows * lengths[i]);
}

template <class T>
void average_all(const Step& step, const Context& context, const Windows& windows, const Divisors& divisors) {
  const int64_t count = windows.axes[2].count;
  auto* lengths = static_cast<T*>(context.workspace(count * sizeof(T), 1));
  if (lengths == nullptr) return;
  for (int64_t i = 0; i < count; ++i) lengths[i] = static_cast<T>(divisors.along(windows, 2, i));
  for_window_rows(windows, context, [&](int64_t begin, int64_t end) {
    auto* columns = static_cast<T*>(context.workspace(windows.axes[2].size * sizeof(T), 2));
    if (columns == nullptr) return;
    for (int64_t i = begin; i < end; ++i) {
      const WindowRow row(windows, i);
      const T* plane = step.tensors[1].as<const T>() + row.plane * windows.plane();
      average_row(windows, row, divisors, plane, lengths, columns, step.tensors[0].as<T>() + i * count);
    }
  });
}

bool average(const Step& step, const Context& context, Windows& windows, const Divisors& divisors) {
  if (!windows.place(context)) return context.complete();
  if (step.tensors[1].dtype == DType::kInt64) {
    average_all<int64_t>(step, context, windows, divisors);
  } else {
    with_float(step.tensors[1].dtype, [&](auto zero) {
      average_all<decltype(zero)>(step, context, windows, divisors);
    });
  }
  return context.complete();
}

template <int kRank>
bool avg_pool(const Step& step, const Context& context) {
  Windows windows(step.tensors[0], step.tensors[1], kRank);
  const int64_t* rest = windows.read(step.integers, false);  // ceil_mode first
  return average(step, context, windows, {rest[1] != 0, rest[2]});
}

template <int kRank>
bool adaptive_avg_pool(const Step& step, const Context& context) {
  Windows windows(step.tensors[0], step.tensors[1], kRank);
  windows.adapt();
  return average(step, context, windows, {false, kAbsent});
}

// Maxima: the last NaN, else the first of the greatest elements; where it lies in its plane.

template <class T>
constexpr T kLeast = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                          : std::numeric_limits<T>::lowest();

template <class T>
bool passes(T value, T best) {
  return (value > best) | (value != value);
}

template <class T, class Place>
void take_strided(const T* __restrict x, int64_t stride, int64_t n, Place first, T* __restrict best,
                  Place* __restrict places) {
  with_stride(stride, [&](auto step) {
    for (int64_t i = 0; i < n; ++i) {
      const T value = x[i * step];
      const bool taken = passes(value, best[i]);
      best[i] = taken ? value : best[i];
      places[i] = taken ? first + static_cast<Place>(i * step) : places[i];
    }
  });
}

template <class T, class Place>
void max_row(const Windows& windows, const WindowRow& row, const T* plane, T* best, Place* places) {
  const Axis& wide = windows.axes[2];
  const int64_t start = (row.deep.begin * windows.axes[1].size + row.high.begin) * wide.size;
  std::fill(best, best + wide.count, kLeast<T>);
  for (int64_t i = 0; i < wide.count; ++i) places[i] = static_cast<Place>(start + windows.spans[2][i].begin);
  row.each(windows, [&](int64_t at) {
    for (int64_t tap = 0; tap < wide.kernel; ++tap) {
      const Span within = windows.taps[tap];
      const int64_t first = at + within.begin * wide.stride - wide.padding + tap * wide.dilation;
      take_strided(plane + first, wide.stride, within.end - within.begin, static_cast<Place>(first),
                   best + within.begin, places + within.begin);
    }
  });
}

template <class T>
void max_windows(const Windows& windows, const WindowRow& row, const T* plane, T* best, int64_t* places) {
  const int64_t start = (row.deep.begin * windows.axes[1].size + row.high.begin) * windows.axes[2].size;
  for (int64_t i = 0; i < windows.axes[2].count; ++i) {
    const Span wide = windows.spans[2][i];
    T found = kLeast<T>;
    int64_t place = start + wide.begin;
    row.each(windows, [&](int64_t at) {
      for (int64_t w = wide.begin; w < wide.end; w += wide.step) {
        if (!passes(plane[at + w], found)) continue;
        found = plane[at + w];
        place = at + w;
      }
    });
    best[i] = found;
    places[i] = place;
  }
}

// The second result, where the greatest elements lie, is left out where nobody reads it.
bool maximum(const Step& step, const Context& context, Windows& windows) {
  if (!windows.place(context)) return context.complete();
  const Tensor &values = step.tensors[0], &indices = step.tensors[1], &x = step.tensors[2];
  const int64_t width = windows.axes[2].count;
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    // As wide as an element, so that compilers compute as many at once.
    using Place = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
    const bool by_rows = windows.by_rows() && windows.plane() <= std::numeric_limits<Place>::max();
    for_window_rows(windows, context, [&](int64_t begin, int64_t end) {
      void* places = context.workspace(width * sizeof(int64_t), 1);
      if (places == nullptr) return;
      for (int64_t i = begin; i < end; ++i) {
        const WindowRow row(windows, i);
        const T* plane = x.as<const T>() + row.plane * windows.plane();
        T* best = values.as<T>() + i * width;
        const auto keep = [&](const auto* made) {
          if (indices) std::copy(made, made + width, indices.as<int64_t>() + i * width);
        };
        if (by_rows) {
          max_row(windows, row, plane, best, static_cast<Place*>(places));
          keep(static_cast<const Place*>(places));
        } else {
          max_windows(windows, row, plane, best, static_cast<int64_t*>(places));
          keep(static_cast<const int64_t*>(places));
        }
      }
    });
  });
  return context.complete();
}

template <int kRank>
bool max_pool(const Step& step, const Context& context) {
  Windows windows(step.tensors[0], step.tensors[2], kRank);
  windows.read(step.integers, true);
  return maximum(step, context, windows);
}

template <int kRank>
bool adaptive_max_pool(const Step& step, const Context& context) {
  Windows windows(step.tensors[0], step.tensors[2], kRank);
  windows.adapt();
  return maximum(step, context, windows);
}

// Operands of averages: the result and x; of maxima: places, perhaps, between them.
bool pooled(Check& c, int rank, bool average) {
  const int x = average ? 1 : 2;
  const bool right = average ? c.operands(1, 2) && c.dtype(1, kWideFloats | only(DType::kInt64))
                             : c.operands(2, 3, 0b010) && c.dtype(2, kTypes);
  if (!right || !c.same_dtype(0, x) || !c.rank(x, rank) || !c.same_leading(0, x, rank))
    return false;
  if (!c.both_packed(0, x)) return false;
  return average || !c[1] || (c.dtype(1, only(DType::kInt64)) && c.same_shape(1, 0) && c.packed(1));
}

// How many windows an axis may have: as the size of a result follows from settings.
bool windows_fit(Check& c, const Axis& axis) {
  const bool sane =
      axis.kernel >= 1 && axis.stride >= 1 && axis.padding >= 0 && axis.dilation >= 1 &&
      std::max({axis.kernel, axis.stride, axis.padding, axis.dilation}) <= kMostSetting;
  if (!c.holds(sane, "settings of a window", axis.kernel, axis.stride)) return false;
  const int64_t room = axis.size + 2 * axis.padding - axis.dilation * (axis.kernel - 1) - 1;
  const int64_t most = room < 0 ? 0 : ceil_div(room, axis.stride) + 1;
  return c.holds(axis.count <= most, "more windows than fit", axis.count, most);
}

// Integers: lists of kernel, stride, padding and, of maxima, dilation, then the others.
template <int kRank>
bool pooled_windows(Check& c, bool average) {
  int64_t at = 0;
  if (!pooled(c, kRank, average)) return false;
  for (int i = 0; i < (average ? 3 : 4); ++i) {
    if (i == 1 && at < c.integer_count && c.integer(at) == 0) {
      ++at;  // strides as large as the kernel
    } else if (!c.list(&at, kRank, kRank)) {
      return false;
    }
  }
  if (!c.settings(at + (average ? 3 : 1))) return false;
  Windows windows(c[0], c[average ? 1 : 2], kRank);
  windows.read(c.step.integers, !average);
  for (int i = 3 - kRank; i < 3; ++i) {
    if (!windows_fit(c, windows.axes[i])) return false;
  }
  return true;
}
template <int kRank>
bool averaged(Check& c) {
  return pooled_windows<kRank>(c, true);
}
template <int kRank>
bool maximal(Check& c) {
  return pooled_windows<kRank>(c, false);
}

template <int kRank>
bool pooled_adaptively(Check& c, bool average) {
  if (!pooled(c, kRank, average)) return false;
  const Windows windows(c[0], c[average ? 1 : 2], kRank);
  for (const Axis& each : windows.axes) {
    const int64_t product = bounded_product(each.size, each.count);
    if (!c.holds(product <= kMostProduct, "too many elements", product)) return false;
  }
  return true;
}
template <int kRank>
bool averaged_adaptively(Check& c) {
  return pooled_adaptively<kRank>(c, true);
}
template <int kRank>
bool maximal_adaptively(Check& c) {
  return pooled_adaptively<kRank>(c, false);
}

}  // namespace

const Entry kPools[] = {
    {"aten::avg_pool2d", avg_pool<2>, averaged<2>},
    {"aten::avg_pool3d", avg_pool<3>, averaged<3>},
    {"aten::_adaptive_avg_pool2d", adaptive_avg_pool<2>, averaged_adaptively<2>},
    {"aten::_adaptive_avg_pool3d", adaptive_avg_pool<3>, averaged_adaptively<3>},
    {"aten::max_pool2d_with_indices", max_pool<2>, maximal<2>},
    {"aten::max_pool3d_with_indices", max_pool<3>, maximal<3>},
    {"aten::adaptive_max_pool2d", adaptive_max_pool<2>, maximal_adaptively<2>},
    {"aten::adaptive_max_pool3d", adaptive_max_pool<3>, maximal_adaptively<3>},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
