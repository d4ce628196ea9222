// Kernels that reduce or rank along axes: sums, extremes, norms and softmax.
//
// A sum is taken in the order of the elements, in eight float lanes along a row, so it
// does not depend on threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "kernels.h"
#include "pool.h"
#include "reduced.h"
#include "rows.h"
#include "types.h"
#include "vector_math.h"

namespace kvc {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int kLanes = 8;

// Results of a reduction lie together, in the order of the kept axes.
template <class T, class R, class F>
void reduce(const Step& step, const Context& context, const int64_t* axes, const F& function) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const Reduced over(x, axes);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, over.gone));
  parallel(over.kept, grain, context.threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) out.as<R>()[i] = function(over, i);
  });
}

template <class T>
double total(const Tensor& x, const Reduced& over, int64_t i) {
  double sum = 0;
  over.each<T>(x, i, [&](T value) { sum += static_cast<double>(value); });
  return sum;
}

template <bool kMean>
bool sum(const Step& step, const Context& context) {
  const Tensor& x = step.tensors[1];
  const auto typed = [&](auto zero) {
    using T = decltype(zero);
    using R = std::conditional_t<std::is_floating_point_v<T>, T, int64_t>;
    reduce<T, R>(step, context, step.integers, [&](const Reduced& over, int64_t i) {
      if constexpr (std::is_integral_v<T>) {
        uint64_t found = 0;
        over.each<T>(x, i, [&](T value) { found += static_cast<uint64_t>(value); });
        return static_cast<R>(found);
      } else {
        const double found = total<T>(x, over, i);
        return static_cast<R>(kMean ? found / static_cast<double>(over.gone) : found);
      }
    });
  };
  with_type(x.dtype, typed);
  return true;
}

// Whether each result has elements to be chosen among.
bool check_choice(const Step& step, const int64_t* axes, const Context& context) {
  const Reduced over(step.tensors[1], axes);
  return over.gone != 0 || over.kept == 0 || context.refuse(Fault::kNothingToReduce, 0);
}

// Whether a value comes before another one; NaNs come first, equal ones stay as they lie.
template <bool kMax, class T>
bool precedes(T value, T other) {
  return other == other && (value != value || (kMax ? value > other : value < other));
}

template <bool kMax>
bool extreme(const Step& step, const Context& context) {
  const Tensor& x = step.tensors[1];
  if (!check_choice(step, step.integers, context)) return false;
  with_number(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    reduce<T, T>(step, context, step.integers, [&](const Reduced& over, int64_t i) {
      T found{};
      bool first = true;
      over.each<T>(x, i, [&](T value) {
        if (first || precedes<kMax>(value, found)) found = value;
        first = false;
      });
      return found;
    });
  });
  return true;
}

// Whether any, or all, of bool elements are true.
template <bool kAny>
bool truth(const Step& step, const Context& context, const int64_t* axes) {
  reduce<bool, bool>(step, context, axes, [&](const Reduced& over, int64_t i) {
    bool found = !kAny;
    over.each<bool>(step.tensors[1], i, [&](bool value) {
      found = kAny ? found || value : found && value;
    });
    return found;
  });
  return true;
}
template <bool kAny>
bool truth_dims(const Step& step, const Context& context) {
  return truth<kAny>(step, context, step.integers);
}
template <bool kAny>
bool truth_dim(const Step& step, const Context& context) {
  const int64_t axes[2] = {1, step.integers[0]};
  return truth<kAny>(step, context, axes);
}
template <bool kAny>
bool truth_of_all(const Step& step, const Context& context) {
  const int64_t axes[1] = {0};
  return truth<kAny>(step, context, axes);
}

// The sum of function(x[i]) over a row, in lanes.
template <class F>
float lane_sum(const float* x, int64_t n, const F& function) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += function(x[i + lane]);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += function(x[i]);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Rows of the last dim(s), which lie together, of a tensor that is float32.
template <class F>
void for_rows(const Tensor& x, int64_t width, int threads, const F& function) {
  const int64_t rows = x.count() / std::max<int64_t>(1, width);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
  parallel(rows, grain, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) function(row);
  });
}

// Where row `row` of width `width` of `x` begins, whose last axes lie together.
const float* row_of(const Tensor& x, int64_t row, int64_t width) {
  int axis = x.rank;
  for (int64_t left = width; left > 1 && axis > 0;) left /= x.dims[--axis];
  while (axis > 0 && x.dims[axis - 1] == 1) --axis;
  return x.as<const float>() + Reduced::offset(row, axis, x.dims, x.strides);
}

bool rms_norm(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &weight = step.tensors[2];
  int64_t width = 1;
  for (int64_t i = 0; i < step.integers[0]; ++i) width *= step.integers[1 + i];
  const float eps = norm_eps(step.numbers[0]);
  for_rows(out, width, context.threads, [&](int64_t row) {
    norm_row(row_of(x, row, width), weight.as<const float>(), eps, width, out.as<float>() + row * width);
  });
  return true;
}

// y = (x - mean) / sqrt(var + eps) * weight + bias
bool layer_norm(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const float* weight = step.tensors[2].as<const float>();
  const float* bias = step.tensors[3].as<const float>();
  int64_t width = 1;
  for (int64_t i = 0; i < step.integers[0]; ++i) width *= step.integers[1 + i];
  const float eps = static_cast<float>(step.numbers[0]);
  for_rows(out, width, context.threads, [&](int64_t row) {
    const float* from = row_of(x, row, width);
    float* to = out.as<float>() + row * width;
    const float mean = lane_sum(from, width, [](float v) { return v; }) / static_cast<float>(width);
    const float square = lane_sum(from, width, [mean](float v) { return (v - mean) * (v - mean); });
    const float factor = 1.0f / std::sqrt(square / static_cast<float>(width) + eps);
    for (int64_t i = 0; i < width; ++i) {
      float value = (from[i] - mean) * factor;
      if (weight != nullptr) value *= weight[i];
      to[i] = bias != nullptr ? value + bias[i] : value;
    }
  });
  return true;
}

// Along the last axis, whose rows lie together; of a row that is all -infinity, NaN.
template <bool kLog>
bool softmax(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const int64_t width = x.dim(-1);
  for_rows(out, width, context.threads, [&](int64_t row) {
    const float* from = row_of(x, row, width);
    float* to = out.as<float>() + row * width;
    float most = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < width; ++i) most = from[i] > most || from[i] != from[i] ? from[i] : most;
    for (int64_t i = 0; i < width; ++i) to[i] = from[i] - most;
    if (kLog) {
      const float sum = std::log(lane_sum(to, width, [](float v) { return exp_of(v); }));
      for (int64_t i = 0; i < width; ++i) to[i] -= sum;
    } else {
      for (int64_t i = 0; i < width; ++i) to[i] = exp_of(to[i]);
      const float sum = lane_sum(to, width, [](float v) { return v; });
      for (int64_t i = 0; i < width; ++i) to[i] /= sum;
    }
  });
  return true;
}

// The index of the first of the greatest, or least, elements.
template <bool kMax, class T>
int64_t chosen(const Tensor& x, const Reduced& over, int64_t i, T* found) {
  int64_t index = -1, place = 0;
  over.each<T>(x, i, [&](T value) {
    if (index < 0 || precedes<kMax>(value, *found)) {
      *found = value;
      index = place;
    }
    ++place;
  });
  return index;
}

template <bool kMax>
bool choose(const Step& step, const Context& context) {
  const int64_t given[2] = {1, step.integers[0]}, all[1] = {0};
  const int64_t* axes = step.integers[0] == kAbsent ? all : given;
  const Tensor& x = step.tensors[1];
  if (!check_choice(step, axes, context)) return false;
  with_number(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    reduce<T, int64_t>(step, context, axes, [&](const Reduced& over, int64_t i) {
      T found{};
      return chosen<kMax>(x, over, i, &found);
    });
  });
  return true;
}

// As `choose`, with the elements themselves before their indices.
template <bool kMax>
bool choose_both(const Step& step, const Context& context) {
  const Tensor &values = step.tensors[0], &indices = step.tensors[1], &x = step.tensors[2];
  const int64_t axes[2] = {1, step.integers[0]};
  const Reduced over(x, axes);
  if (over.gone == 0 && over.kept != 0) return context.refuse(Fault::kNothingToReduce, 0);
  with_number(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < over.kept; ++i) {
      indices.as<int64_t>()[i] = chosen<kMax>(x, over, i, values.as<T>() + i);
    }
  });
  return true;
}

// The greatest elements along an axis, or the least, in order, and their indices; of equal
// ones the first. A NaN is greater than all. Arguments: how many, the axis, whether the
// greatest.
bool topk(const Step& step, const Context& context) {
  const int64_t count = step.integers[0];
  const int axis = static_cast<int>(step.integers[1]);
  const bool greatest = step.integers[2] != 0;
  const Tensor &values = step.tensors[0], &indices = step.tensors[1], &x = step.tensors[2];
  const int64_t axes[2] = {1, axis};
  const Reduced from(x, axes), to(values, axes);
  const int64_t read = x.rank != 0 ? x.stride(axis) : 0;
  const int64_t written = values.rank != 0 ? values.stride(axis) : 0;
  auto* order = static_cast<int64_t*>(context.workspace(from.gone * sizeof(int64_t)));
  if (order == nullptr) return context.complete();
  with_number(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < from.kept; ++i) {
      const T* row = x.as<const T>() + Reduced::offset(i, from.kept_rank, from.kept_dims, from.kept_strides);
      const int64_t target = Reduced::offset(i, to.kept_rank, to.kept_dims, to.kept_strides);
      std::iota(order, order + from.gone, int64_t{0});
      std::partial_sort(order, order + count, order + from.gone, [&](int64_t a, int64_t b) {
        const T one = row[(greatest ? a : b) * read], other = row[(greatest ? b : a) * read];
        return precedes<true>(one, other) || (!precedes<true>(other, one) && a < b);
      });
      for (int64_t j = 0; j < count; ++j) {
        values.as<T>()[target + j * written] = row[order[j] * read];
        indices.as<int64_t>()[target + j * written] = order[j];
      }
    }
  });
  return true;
}

// Sums along an axis; those of floats are taken in double, those of integers wrap around.
template <class T, class Sum>
void cumulate(const Tensor& out, const Tensor& x, int axis) {
  const int64_t axes[2] = {1, axis};
  const Reduced from(x, axes), to(out, axes);
  const int64_t stride = out.rank != 0 ? out.stride(axis) : 0;
  for (int64_t i = 0; i < from.kept; ++i) {
    T* target = out.as<T>() + Reduced::offset(i, to.kept_rank, to.kept_dims, to.kept_strides);
    Sum sum = 0;
    from.each<T>(x, i, [&](T value) {
      sum += static_cast<Sum>(value);
      *target = static_cast<T>(sum);
      target += stride;
    });
  }
}

bool cumsum(const Step& step, const Context&) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const int axis = static_cast<int>(step.integers[0]);
  if (x.dtype == DType::kFloat32) cumulate<float, double>(out, x, axis);
  if (x.dtype == DType::kInt64) cumulate<int64_t, uint64_t>(out, x, axis);
  return true;
}

}  // namespace

float norm_eps(double given) {
  return given != given ? std::numeric_limits<float>::epsilon() : static_cast<float>(given);
}

void norm_row(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const float sum = lane_sum(x, n, [](float value) { return value * value; });
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i] * factor;
    y[i] = weight != nullptr ? value * weight[i] : value;
  }
}

const Entry kReductions[] = {
    {"aten::sum.dim_IntList", sum<false>},
    {"aten::mean.dim", sum<true>},
    {"aten::amax", extreme<true>},
    {"aten::amin", extreme<false>},
    {"aten::any", truth_of_all<true>},
    {"aten::all", truth_of_all<false>},
    {"aten::any.dim", truth_dim<true>},
    {"aten::all.dim", truth_dim<false>},
    {"aten::any.dims", truth_dims<true>},
    {"aten::all.dims", truth_dims<false>},
    {"aten::argmax", choose<true>},
    {"aten::argmin", choose<false>},
    {"aten::max.dim", choose_both<true>},
    {"aten::min.dim", choose_both<false>},
    {"aten::topk", topk},
    {"aten::cumsum", cumsum},
    {"aten::rms_norm", rms_norm},
    {"aten::layer_norm", layer_norm},
    {"aten::softmax.int", softmax<false>},
    {"aten::log_softmax.int", softmax<true>},
    {nullptr, nullptr},
};

}  // namespace kvc
