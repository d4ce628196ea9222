// Kernels that reduce to one number: sums, products, extremes, norms, variances.
//
// Sums of floats are taken in double.
#include <cmath>
#include <limits>
#include <type_traits>

#include "folds.h"
#include "kernels.h"
#include "types.h"

namespace kvc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sums and products of integers wrap around.
template <class T>
using Total = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;

// The sum of `of` of each element.
template <class T, class F>
struct Sum {
  F of;
  Total<T> start() const { return 0; }
  Total<T> add(Total<T> sum, T x, int64_t j, int64_t) const {
    return sum + of(static_cast<Total<T>>(x), j);
  }
  Total<T> merge(Total<T> a, Total<T> b) const { return a + b; }
};
template <class T, class F>
Sum<T, F> sum_of(const F& of) {
  return {of};
}
template <class T>
auto plain_sum() {
  return sum_of<T>([](auto x, int64_t) { return x; });
}

template <class T>
struct Product {
  using A = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  A start() const { return 1; }
  A add(A product, T x, int64_t, int64_t) const { return product * static_cast<A>(x); }
  A merge(A a, A b) const { return a * b; }
};

// The greatest, or least, of `of` of each element; a NaN is both.
template <bool kMax, class T, class F>
struct Extreme {
  F of;
  T start() const {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity) return kMax ? -Limits::infinity() : Limits::infinity();
    return kMax ? Limits::lowest() : Limits::max();
  }
  T merge(T a, T b) const {
    const T further = (kMax ? b > a : b < a) ? b : a;
    return b != b ? b : further;
  }
  T add(T found, T x, int64_t, int64_t) const { return merge(found, of(x)); }
};
template <bool kMax, class T, class F>
Extreme<kMax, T, F> extreme_of(const F& of) {
  return {of};
}

// In the dtype of the operand, or of integers and bools in int64.
bool sum(const Step& step, const Context& context) {
  with_type(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto into = [&](auto result) {
      using R = decltype(result);
      reduce_with<T, R>(step, context, step.integers, plain_sum<T>(),
                        [](Total<T> found) { return static_cast<R>(found); });
    };
    if (step.tensors[0].dtype == step.tensors[1].dtype) return into(zero);
    into(int64_t{});
  });
  return true;
}

bool mean(const Step& step, const Context& context) {
  const auto count = static_cast<double>(Fold(step.tensors[1], step.integers).gone);
  with_float(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    reduce_with<T, T>(step, context, step.integers, plain_sum<T>(),
                      [count](double found) { return static_cast<T>(found / count); });
  });
  return true;
}

bool product(const Step& step, const Context& context, const int64_t* axes) {
  with_number(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    reduce_with<T, T>(step, context, axes, Product<T>{},
                      [](auto found) { return static_cast<T>(found); });
  });
  return true;
}
bool product_along(const Step& step, const Context& context) {
  const int64_t axes[2] = {1, step.integers[0]};
  return product(step, context, axes);
}
bool product_of_all(const Step& step, const Context& context) {
  const int64_t axes[1] = {0};
  return product(step, context, axes);
}

template <bool kMax>
bool extreme(const Step& step, const Context& context) {
  if (!check_choice(step.tensors[1], step.integers, context)) return false;
  with_type(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    reduce_with<T, T>(step, context, step.integers, extreme_of<kMax, T>([](T x) { return x; }),
                      [](T found) { return found; });
  });
  return true;
}

// The norm of an order that is finite: a root of the sum of powers.
template <class T>
void power_norm(const Step& step, const Context& context, double order) {
  const auto reduce = [&](auto of, auto finish) {
    reduce_with<T, T>(step, context, step.integers + 1, sum_of<T>(of),
                      [&](double found) { return static_cast<T>(finish(found)); });
  };
  const auto as_it_is = [](double sum) { return sum; };
  if (order == 0) {
    reduce([](double x, int64_t) { return x != 0 ? 1.0 : 0.0; }, as_it_is);
  } else if (order == 1) {
    reduce([](double x, int64_t) { return std::abs(x); }, as_it_is);
  } else if (order == 2) {
    reduce([](double x, int64_t) { return x * x; }, [](double sum) { return std::sqrt(sum); });
  } else {
    reduce([order](double x, int64_t) { return std::pow(std::abs(x), order); },
           [order](double sum) { return std::pow(sum, 1 / order); });
  }
}

bool vector_norm(const Step& step, const Context& context) {
  const double order = step.numbers[0];
  const int64_t* axes = step.integers + 1;
  if ((order < 0 || order == kInfinity) && !check_choice(step.tensors[1], axes, context)) return false;
  with_float(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto size = [](T x) { return std::abs(x); };
    const auto as_it_is = [](T found) { return found; };
    if (order == kInfinity) {
      reduce_with<T, T>(step, context, axes, extreme_of<true, T>(size), as_it_is);
    } else if (order == -kInfinity) {
      reduce_with<T, T>(step, context, axes, extreme_of<false, T>(size), as_it_is);
    } else {
      power_norm<T>(step, context, order);
    }
  });
  return true;
}

// Squares of distances from the mean, added up and divided by as many elements less the
// correction. `mean`: where the means go; null where nobody asks for them.
template <class T>
void variances(const Tensor& out, T* mean, const Tensor& x, const Step& step, const Context& context) {
  const Fold over(x, step.integers);
  const double correction = std::isnan(step.numbers[0]) ? 1 : step.numbers[0];
  const auto count = static_cast<double>(over.gone);
  over.each<T>(x, context.threads, [&](const T* from, int64_t n, int64_t to) {
    double means[Fold::kTile], squares[Fold::kTile];
    over.fold(from, n, plain_sum<T>(), means);
    for (int64_t j = 0; j < n; ++j) means[j] /= count;
    const double* middle = means;
    over.fold(from, n, sum_of<T>([middle](double value, int64_t j) {
      return (value - middle[j]) * (value - middle[j]);
    }), squares);
    for (int64_t j = 0; j < n; ++j) {
      out.as<T>()[to + j * over.step] = static_cast<T>(squares[j] / std::max(0.0, count - correction));
      if (mean != nullptr) mean[to + j * over.step] = static_cast<T>(means[j]);
    }
  });
}

template <bool kMean>
bool variance(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[kMean ? 2 : 1];
  with_float(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    variances<T>(out, kMean ? step.tensors[1].as<T>() : nullptr, x, step, context);
  });
  return true;
}

bool reduces(Check& c, DTypes dtypes, int results = 1) {
  const int x = results;
  if (!c.operands(results, x + 1) || !c.dtype(x, dtypes)) return false;
  return c.same_dtype(0, x) && (results == 1 || c.same_dtype(1, x));
}
// Integers and bools are added up in int64.
bool added(Check& c) {
  int64_t at = 0;
  if (!c.operands(1, 2) || !c.dtype(1, kTypes)) return false;
  const DTypes own = only(c[1].dtype);
  return c.dtype(0, own | only(DType::kInt64)) && reduced_along_axes(c, c[1], &at, 1);
}
template <DTypes kDTypes>
bool along_axes(Check& c) {
  int64_t at = 0;
  return reduces(c, kDTypes) && reduced_along_axes(c, c[1], &at, 1);
}
bool along_one(Check& c) {
  return reduces(c, kNumbers) && c.settings(1) && reduced_along(c, c[1], 0, 1);
}
bool of_whole(Check& c) { return reduces(c, kNumbers) && reduced_whole(c, c[1], 1); }
// The order comes before the axes.
bool normed(Check& c) {
  int64_t at = 1;
  return reduces(c, kWideFloats) && c.settings(2, 1) && reduced_along_axes(c, c[1], &at, 1);
}
template <int kResults>
bool varied(Check& c) {
  int64_t at = 0;
  return reduces(c, kWideFloats, kResults) && c.settings(1, 1) &&
         reduced_along_axes(c, c[kResults], &at, kResults);
}

}  // namespace

const Entry kSums[] = {
    {"aten::sum.dim_IntList", sum, added},
    {"aten::mean.dim", mean, along_axes<kWideFloats>},
    {"aten::prod.dim_int", product_along, along_one},
    {"aten::prod", product_of_all, of_whole},
    {"aten::amax", extreme<true>, along_axes<kTypes>},
    {"aten::amin", extreme<false>, along_axes<kTypes>},
    {"aten::linalg_vector_norm", vector_norm, normed},
    {"aten::var.correction", variance<false>, varied<1>},
    {"aten::var_mean.correction", variance<true>, varied<2>},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
