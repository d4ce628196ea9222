// Resizing of planes: nearest, bilinear, and with a filter that shrinks without aliasing.
//
// Filters are separable. A band of result rows is made of the rows that it needs, resized along
// the width first; then each result row is a sum of whole rows.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "elements.h"
#include "kernels.h"
#include "types.h"

namespace kvc {
namespace {

constexpr int64_t kBand = 16384;  // elements of a band, which stays near

// What the positions of an axis are multiplied by; `factor` is how often larger the result is
// to be, or NaN.
template <class T>
T scale_of(int64_t size, int64_t count, double factor) {
  return factor > 0 ? static_cast<T>(1 / factor) : static_cast<T>(size) / static_cast<T>(count);
}

// Nearest.

// In float, whatever the elements are; what keeps its size or doubles it, whatever the factor.
void find_nearest(int64_t size, int64_t count, double factor, int64_t* places) {
  const float scale = scale_of<float>(size, count, factor);
  const bool kept = count == size, doubled = count == 2 * size;
  for (int64_t i = 0; i < count; ++i) {
    const auto place = static_cast<int64_t>(std::floor(static_cast<float>(i) * scale));
    places[i] = kept ? i : (doubled ? i / 2 : std::clamp<int64_t>(place, 0, size - 1));
  }
}

bool doubles(const int64_t* places, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (places[i] != i / 2) return false;
  }
  return true;
}

template <class T>
void spread_row(const T* __restrict x, const int64_t* places, int64_t count, bool doubled, T* __restrict y) {
  if (!doubled) {
    for (int64_t i = 0; i < count; ++i) y[i] = x[places[i]];
    return;
  }
  for (int64_t i = 0; i < count / 2; ++i) y[2 * i] = y[2 * i + 1] = x[i];
  if (count % 2 != 0) y[count - 1] = x[count / 2];
}

// The size, and how often larger each axis is.
bool nearest(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  if (out.count() == 0) return true;
  const int64_t height = out.dim(-2), width = out.dim(-1);
  auto* rows = static_cast<int64_t*>(context.workspace((height + width) * sizeof(int64_t)));
  if (rows == nullptr) return context.complete();
  int64_t* columns = rows + height;
  find_nearest(x.dim(-2), height, step.numbers[0], rows);
  find_nearest(x.dim(-1), width, step.numbers[1], columns);
  const bool doubled = doubles(columns, width);
  with_size(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t grain = std::max<int64_t>(1, kGrain / width);
    parallel(out.count() / width, grain, context.threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t plane = row / height, place = rows[row % height];
        T* to = out.as<T>() + row * width;
        if (row > begin && row % height != 0 && place == rows[row % height - 1]) {
          std::memcpy(to, to - width, width * sizeof(T));
        } else {
          const T* from = x.as<const T>() + (plane * x.dim(-2) + place) * x.dim(-1);
          spread_row(from, columns, width, doubled, to);
        }
      }
    });
  });
  return true;
}

// Filters.

// The elements along an axis that each result is made of: `taps` at most, `counts` of them from
// `first` on. Of two taps the second may be the first once more; then `counts` is 1.
template <class T>
struct Filter {
  int64_t size, results, taps;
  int64_t *first, *counts;
  T* weights;

  static size_t nbytes(int64_t results, int64_t taps) {
    return results * (2 * sizeof(int64_t) + taps * sizeof(T));
  }

  Filter(int64_t size, int64_t results, int64_t taps, void* memory)
      : size(size), results(results), taps(taps) {
    first = static_cast<int64_t*>(memory);
    counts = first + results;
    weights = reinterpret_cast<T*>(counts + results);
  }

  int64_t end(int64_t result) const { return first[result] + counts[result]; }
};

template <class T>
void fill_bilinear(const Filter<T>& filter, bool corners, double factor) {
  T scale = scale_of<T>(filter.size, filter.results, factor);
  if (corners) {
    const int64_t gaps = filter.results - 1;
    scale = gaps > 0 ? static_cast<T>(filter.size - 1) / static_cast<T>(gaps) : 0;
  }
  for (int64_t i = 0; i < filter.results; ++i) {
    T place = static_cast<T>(i);
    if (filter.size != filter.results) {
      place = corners ? place * scale : (place + T(0.5)) * scale - T(0.5);
    }
    place = std::max(place, T(0));
    filter.first[i] = std::clamp<int64_t>(static_cast<int64_t>(place), 0, filter.size - 1);
    const T second = std::min(std::max(place - static_cast<T>(filter.first[i]), T(0)), T(1));
    const bool last = filter.first[i] == filter.size - 1 || filter.size == filter.results;
    filter.counts[i] = last ? 1 : 2;
    filter.weights[2 * i] = 1 - second;
    filter.weights[2 * i + 1] = second;
  }
}

template <class T>
T triangle_at(T x) {
  return std::max(1 - std::abs(x), T(0));
}

// Keys: Cubic convolution interpolation for digital image processing, with a = -1/2.
template <class T>
T cubic_at(T x) {
  const T a = T(-0.5), at = std::abs(x);
  if (at < 1) return ((a + 2) * at - (a + 3)) * at * at + 1;
  if (at < 2) return (((at - 5) * at + 8) * at - 4) * a;
  return 0;
}

// How far the filter reaches to each side of a result's position.
template <class T>
T support_of(T scale, bool cubic) {
  const T reach = cubic ? 2 : 1;
  return scale >= 1 ? reach * scale : reach;
}

template <class T>
int64_t smooth_taps(int64_t size, T scale, bool cubic) {
  return std::min(size, static_cast<int64_t>(std::ceil(support_of(scale, cubic))) * 2 + 1);
}

// An axis that keeps its size is not filtered.
template <class T>
void fill_smooth(const Filter<T>& filter, T scale, bool cubic) {
  const bool kept = filter.size == filter.results;
  const T reach = support_of(scale, cubic), narrowed = scale >= 1 ? 1 / scale : T(1);
  for (int64_t i = 0; i < filter.results; ++i) {
    const T center = static_cast<T>(scale * (static_cast<double>(i) + 0.5));
    const auto begin = static_cast<int64_t>(center - reach + 0.5);
    const auto end = static_cast<int64_t>(center + reach + 0.5);
    const int64_t first = filter.first[i] = kept ? i : std::clamp<int64_t>(begin, 0, filter.size - 1);
    const int64_t count = kept ? 1 : std::clamp<int64_t>(std::min(end, filter.size) - first, 1, filter.taps);
    filter.counts[i] = count;
    T* weights = filter.weights + i * filter.taps;
    T total = 0;
    for (int64_t j = 0; j < count; ++j) {
      const T at = static_cast<T>((static_cast<T>(j + first) - center + 0.5) * narrowed);
      weights[j] = kept ? T(1) : (cubic ? cubic_at(at) : triangle_at(at));
      total += weights[j];
    }
    if (total == 0) continue;
    for (int64_t j = 0; j < count; ++j) weights[j] /= total;
  }
}

template <class T>
void filter_row(const Filter<T>& filter, const T* __restrict x, T* __restrict y) {
  if (filter.taps == 2) {
    for (int64_t i = 0; i < filter.results; ++i) {
      const T *from = x + filter.first[i], *weights = filter.weights + 2 * i;
      y[i] = weights[0] * from[0] + weights[1] * from[filter.counts[i] - 1];
    }
    return;
  }
  for (int64_t i = 0; i < filter.results; ++i) {
    const T *from = x + filter.first[i], *weights = filter.weights + i * filter.taps;
    T sum = weights[0] * from[0];
    for (int64_t j = 1; j < filter.counts[i]; ++j) sum += weights[j] * from[j];
    y[i] = sum;
  }
}

// Result row `row` of rows whose first is row `begin` of the plane.
template <class T>
void join_rows(const Filter<T>& filter, int64_t row, const T* __restrict rows, int64_t begin, int64_t width,
               T* __restrict y) {
  const T* weights = filter.weights + row * filter.taps;
  const T* first = rows + (filter.first[row] - begin) * width;
  if (filter.taps == 2) {
    const T* second = first + (filter.counts[row] - 1) * width;
    for (int64_t i = 0; i < width; ++i) y[i] = weights[0] * first[i] + weights[1] * second[i];
    return;
  }
  for (int64_t i = 0; i < width; ++i) y[i] = weights[0] * first[i];
  for (int64_t j = 1; j < filter.counts[row]; ++j) {
    const T weight = weights[j];
    for (int64_t i = 0; i < width; ++i) y[i] += weight * first[j * width + i];
  }
}

template <class T>
void resize(const Tensor& out, const Tensor& x, const Filter<T>& down, const Filter<T>& across,
            const Context& context) {
  const int64_t height = down.results, width = across.results, planes = out.count() / (height * width);
  const int64_t rows = std::min(height, std::max<int64_t>(1, kBand / width)), bands = (height + rows - 1) / rows;
  parallel(planes * bands, std::max<int64_t>(1, kGrain / (rows * width)), context.threads,
           [&](int64_t begin, int64_t end, int) {
    for (int64_t band = begin; band < end; ++band) {
      const int64_t plane = band / bands, top = band % bands * rows, bottom = std::min(height, top + rows);
      const int64_t first = down.first[top], count = down.end(bottom - 1) - first;
      auto* between = static_cast<T*>(context.workspace(count * width * sizeof(T), 1));
      if (between == nullptr) return;
      for (int64_t i = 0; i < count; ++i) {
        const T* from = x.as<const T>() + (plane * down.size + first + i) * across.size;
        filter_row(across, from, between + i * width);
      }
      for (int64_t row = top; row < bottom; ++row) {
        join_rows(down, row, between, first, width, out.as<T>() + (plane * height + row) * width);
      }
    }
  });
}

// Calls function with the filters of both axes, whose memory is not filled.
template <class T, class F>
void with_filters(const Step& step, const Context& context, const int64_t (&taps)[2], const F& function) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const size_t first = (Filter<T>::nbytes(out.dim(-2), taps[0]) + 7) / 8 * 8;
  auto* memory = static_cast<char*>(context.workspace(first + Filter<T>::nbytes(out.dim(-1), taps[1])));
  if (memory == nullptr) return;
  const Filter<T> down(x.dim(-2), out.dim(-2), taps[0], memory);
  const Filter<T> across(x.dim(-1), out.dim(-1), taps[1], memory + first);
  function(down, across);
  resize(out, x, down, across, context);
}

// The size, whether corners stay corners, and how often larger each axis is.
bool bilinear(const Step& step, const Context& context) {
  if (step.tensors[0].count() == 0) return true;
  const bool corners = step.integers[3] != 0;
  with_float(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    with_filters<T>(step, context, {2, 2}, [&](const Filter<T>& down, const Filter<T>& across) {
      fill_bilinear(down, corners, step.numbers[0]);
      fill_bilinear(across, corners, step.numbers[1]);
    });
  });
  return context.complete();
}

template <bool kCubic>
bool smooth(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  if (out.count() == 0) return true;
  const bool corners = step.integers[3] != 0;
  with_float(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto scale = [&](int axis) {
      const int64_t size = x.dim(axis - 2), gaps = out.dim(axis - 2) - 1;
      if (!corners) return scale_of<T>(size, gaps + 1, step.numbers[axis]);
      return gaps > 0 ? static_cast<T>(size - 1) / static_cast<T>(gaps) : T(0);
    };
    // At least three, since two have a meaning of their own.
    const auto taps = [&](int axis) {
      return std::max<int64_t>(3, smooth_taps(x.dim(axis - 2), scale(axis), kCubic));
    };
    with_filters<T>(step, context, {taps(0), taps(1)}, [&](const Filter<T>& down, const Filter<T>& across) {
      fill_smooth(down, scale(0), kCubic);
      fill_smooth(across, scale(1), kCubic);
    });
  });
  return context.complete();
}

// How often larger an axis becomes, which is left out where it is NaN, 0 or less.
bool scaled_by(Check& c, int64_t at) {
  constexpr double kLeast = 0x1p-20, kMost = 0x1p20;
  const double factor = c.number(at);
  return c.holds(!(factor > 0) || (factor >= kLeast && factor <= kMost), "a factor out of range",
                 at);
}

bool resized(Check& c, DTypes dtypes) {
  const bool right = c.operands(1, 2) && c.settings(0, 2) && c.dtype(1, dtypes) &&
                     c.same_dtype(0, 1) && c.rank(1, 2) && c.same_leading(0, 1, 2) &&
                     c.both_packed(0, 1) && scaled_by(c, 0) && scaled_by(c, 1);
  if (!right) return false;
  for (int axis = -2; axis < 0; ++axis) {
    const int64_t product = bounded_product(c[0].dim(axis), c[1].dim(axis));
    if (!c.holds(product <= kMostProduct / 64, "too many elements", product)) return false;
  }
  return c.holds(c[0].count() == 0 || c[1].count() != 0, "an operand without elements", 1);
}
bool spread_out(Check& c) { return resized(c, kAll); }
// Integers: the list of sizes, whether corners stay corners.
bool filtered(Check& c) {
  int64_t at = 0;
  return c.list(&at, 2, 2) && c.settings(4) && resized(c, kWideFloats);
}

}  // namespace

const Entry kResizing[] = {
    {"aten::upsample_nearest2d", nearest, spread_out},
    {"aten::upsample_bilinear2d", bilinear, filtered},
    {"aten::_upsample_bilinear2d_aa", smooth<false>, filtered},
    {"aten::_upsample_bicubic2d_aa", smooth<true>, filtered},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
