// Kernels of rows: norms over the last axes, softmax along any axis.
//
// A sum along a row that lies together is taken in eight lanes, so it does not depend on
// threads.
#include "rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels.h"
#include "lane_sums.h"
#include "pool.h"
#include "products.h"
#include "types.h"
#include "vector_math.h"

namespace kvc {
namespace {

constexpr int64_t kGrain = 16384;  // elements that are worth another thread
constexpr int kLanes = 8;
constexpr int64_t kTile = 256;  // elements, or rows side by side, that are computed at once

// The sum of function(x[i]) over a row.
template <class T, class F>
T row_sum(const T* x, int64_t n, const F& function) {
  return lane_sum<kLanes, T>(n, [&](int64_t i) { return function(x[i]); });
}

template <class T>
T own_eps(double given) {
  return given != given ? std::numeric_limits<T>::epsilon() : static_cast<T>(given);
}

template <class T>
void rms_row(const T* x, const T* weight, T eps, int64_t n, T* y) {
  const T sum = row_sum(x, n, [](T value) { return value * value; });
  const T factor = T{1} / std::sqrt(sum / static_cast<T>(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    const T value = x[i] * factor;
    y[i] = weight != nullptr ? value * weight[i] : value;
  }
}

// y = (x - mean) / sqrt(var + eps) * weight + bias
template <class T>
void layer_row(const T* x, const T* weight, const T* bias, T eps, int64_t n, T* y) {
  const T mean = row_sum(x, n, [](T v) { return v; }) / static_cast<T>(n);
  const T square = row_sum(x, n, [mean](T v) { return (v - mean) * (v - mean); });
  const T factor = T{1} / std::sqrt(square / static_cast<T>(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    T value = (x[i] - mean) * factor;
    if (weight != nullptr) value *= weight[i];
    y[i] = bias != nullptr ? value + bias[i] : value;
  }
}

// Calls function(where a row begins, its width) for rows of the last axes, whose number and
// sizes are the first integers; x and the result lie together.
template <class F>
void for_rows(const Step& step, const Context& context, const F& function) {
  int64_t width = 1;
  for (int64_t i = 0; i < step.integers[0]; ++i) width *= step.integers[1 + i];
  const int64_t rows = step.tensors[0].count() / std::max<int64_t>(1, width);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
  parallel(rows, grain, context.threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) function(row * width, width);
  });
}

bool rms_norm(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &weight = step.tensors[2];
  with_float(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T eps = own_eps<T>(step.numbers[0]);
    for_rows(step, context, [&](int64_t at, int64_t width) {
      rms_row(x.as<const T>() + at, weight.as<const T>(), eps, width, out.as<T>() + at);
    });
  });
  return true;
}

bool layer_norm(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  with_float(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *weight = step.tensors[2].as<const T>(), *bias = step.tensors[3].as<const T>();
    const T eps = static_cast<T>(step.numbers[0]);
    for_rows(step, context, [&](int64_t at, int64_t width) {
      layer_row(x.as<const T>() + at, weight, bias, eps, width, out.as<T>() + at);
    });
  });
  return true;
}

void exp_all(const float* x, int64_t n, float* y) { product_kernels().exp(x, n, y); }
void exp_all(const double* x, int64_t n, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = exp_of(x[i]);
}

// A NaN is left out; it makes the sum of powers one.
template <class T>
T greater(T one, T other) {
  return one > other ? one : other;
}

template <class T>
T greatest_of(const T* x, int64_t n) {
  T lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<T>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = greater(x[i + lane], lanes[lane]);
  }
  for (; i < n; ++i) lanes[0] = greater(x[i], lanes[0]);
  for (int lane = 1; lane < kLanes; ++lane) lanes[0] = greater(lanes[lane], lanes[0]);
  return lanes[0];
}

// Of a row that is all -infinity, NaN.
template <bool kLog, class T>
void softmax_row(const T* x, int64_t n, T* y) {
  const auto itself = [](T v) { return v; };
  const T most = greatest_of(x, n);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] - most;
  if (kLog) {
    T sum = 0, piece[kTile];
    for (int64_t i = 0; i < n; i += kTile) {
      const int64_t count = std::min(kTile, n - i);
      exp_all(y + i, count, piece);
      sum += row_sum(piece, count, itself);
    }
    sum = std::log(sum);
    for (int64_t i = 0; i < n; ++i) y[i] -= sum;
  } else {
    exp_all(y, n, y);
    const T sum = row_sum(y, n, itself);
    for (int64_t i = 0; i < n; ++i) y[i] /= sum;
  }
}

// Of n elements, `stride` apart, of each of `count` rows that lie side by side.
template <bool kLog, class T>
void softmax_columns(const T* x, int64_t n, int64_t stride, int64_t count, T* y) {
  T most[kTile], sum[kTile] = {}, piece[kTile];
  std::fill(most, most + count, -std::numeric_limits<T>::infinity());
  const int64_t end = n * stride;
  for (int64_t i = 0; i < end; i += stride) {
    for (int64_t j = 0; j < count; ++j) most[j] = greater(x[i + j], most[j]);
  }
  for (int64_t i = 0; i < end; i += stride) {
    T* powers = kLog ? piece : y + i;
    for (int64_t j = 0; j < count; ++j) y[i + j] = x[i + j] - most[j];
    exp_all(y + i, count, powers);
    for (int64_t j = 0; j < count; ++j) sum[j] += powers[j];
  }
  if (kLog) {
    for (int64_t j = 0; j < count; ++j) sum[j] = std::log(sum[j]);
  }
  for (int64_t i = 0; i < end; i += stride) {
    for (int64_t j = 0; j < count; ++j) y[i + j] = kLog ? y[i + j] - sum[j] : y[i + j] / sum[j];
  }
}

// Along an axis; x and the result lie together.
template <bool kLog>
bool softmax(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  if (out.count() == 0) return true;
  const int axis = static_cast<int>(step.integers[0]);
  const int64_t n = x.rank != 0 ? x.dim(axis) : 1;
  int64_t side = 1;  // rows side by side
  for (int i = axis < 0 ? axis + x.rank + 1 : axis + 1; i < x.rank; ++i) side *= x.dims[i];
  const int64_t tiles = (side + kTile - 1) / kTile;
  const int64_t grain = std::max<int64_t>(1, kGrain / (n * std::min(side, kTile)));
  with_float(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel(out.count() / n / side * tiles, grain, context.threads,
             [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % tiles * kTile, at = i / tiles * n * side + first;
        const T* from = x.as<const T>() + at;
        T* to = out.as<T>() + at;
        if (side == 1) {
          softmax_row<kLog>(from, n, to);
        } else {
          softmax_columns<kLog>(from, n, side, std::min(kTile, side - first), to);
        }
      }
    });
  });
  return true;
}

// x and the result are whole rows of the last axes, whose number and sizes are integers.
bool normed(Check& c, int weights) {
  int64_t at = 0;
  const bool right = c.operands(1, 2 + weights, weights == 1 ? 0b100 : 0b1100) &&
                     c.settings(1, 1) && c.dtype(1, kWideFloats) && c.alike(0, 1) &&
                     c.both_packed(0, 1) && c.list(&at, 0, c[1].rank);
  if (!right) return false;
  int64_t width = 1;
  for (int64_t i = 1; i < at; ++i) {
    if (!c.size(1, static_cast<int>(i - at), c.integer(i))) return false;
    width *= c.integer(i);
  }
  for (int i = 2; i < 2 + weights; ++i) {
    if (c[i] && !(c.same_dtype(i, 1) && c.count(i, width) && c.packed(i))) return false;
  }
  return true;
}
bool rms_normed(Check& c) { return normed(c, 1); }
bool layer_normed(Check& c) { return normed(c, 2); }

bool softened(Check& c) {
  return c.operands(1, 2) && c.settings(1) && c.dtype(1, kWideFloats) && c.alike(0, 1) &&
         c.both_packed(0, 1) && c.axis(0, c[1].rank);
}

}  // namespace

float norm_eps(double given) { return own_eps<float>(given); }

void norm_row(const float* x, const float* weight, float eps, int64_t n, float* y) {
  rms_row(x, weight, eps, n, y);
}

const Entry kRows[] = {
    {"aten::rms_norm", rms_norm, rms_normed},
    {"aten::layer_norm", layer_norm, layer_normed},
    {"aten::softmax.int", softmax<false>, softened},
    {"aten::log_softmax.int", softmax<true>, softened},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
