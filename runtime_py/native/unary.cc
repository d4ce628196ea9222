// Functions of one operand.
#include <cmath>

#include "runs.h"
#include "vector_math.h"

namespace kvc {
namespace {

KVC_UNARY(Acos, OfFloats, T, std::acos(x))
KVC_UNARY(Acosh, OfFloats, T, std::acosh(x))
KVC_UNARY(Asin, OfFloats, T, std::asin(x))
KVC_UNARY(Asinh, OfFloats, T, std::asinh(x))
KVC_UNARY(Atan, OfFloats, T, std::atan(x))
KVC_UNARY(Atanh, OfFloats, T, std::atanh(x))
KVC_UNARY(Ceil, OfFloats, T, std::ceil(x))
KVC_UNARY(Cos, OfFloats, T, cos_of(x))
KVC_UNARY(Cosh, OfFloats, T, std::cosh(x))
KVC_UNARY(Erf, OfFloats, T, erf_of(x))
KVC_UNARY(Erfc, OfFloats, T, std::erfc(x))
KVC_UNARY(Exp, OfFloats, T, exp_of(x))
KVC_UNARY(Exp2, OfFloats, T, std::exp2(x))
KVC_UNARY(Expm1, OfFloats, T, expm1_of(x))
KVC_UNARY(Floor, OfFloats, T, std::floor(x))
KVC_UNARY(Log, OfFloats, T, log_of(x))
KVC_UNARY(Log10, OfFloats, T, std::log10(x))
KVC_UNARY(Log1p, OfFloats, T, std::log1p(x))
KVC_UNARY(Log2, OfFloats, T, std::log2(x))
KVC_UNARY(Reciprocal, OfFloats, T, T(1) / x)
KVC_UNARY(Round, OfFloats, T, std::nearbyint(x))
KVC_UNARY(Rsqrt, OfFloats, T, T(1) / std::sqrt(x))
KVC_UNARY(Sigmoid, OfFloats, T, T(1) / (T(1) + exp_of(-x)))
KVC_UNARY(Sin, OfFloats, T, sin_of(x))
KVC_UNARY(Sinh, OfFloats, T, std::sinh(x))
KVC_UNARY(Sqrt, OfFloats, T, std::sqrt(x))
KVC_UNARY(Tan, OfFloats, T, std::tan(x))
KVC_UNARY(Tanh, OfFloats, T, tanh_of(x))
KVC_UNARY(Trunc, OfFloats, T, std::trunc(x))
KVC_UNARY(Neg, OfNumbers, T, -x)
KVC_UNARY(LogicalNot, OfAll, bool, x == T(0))
KVC_UNARY(Sign, OfAll, T, (x > T(0)) - (x < T(0)))

struct Not : OfBits {
  template <class T>
  static T apply(T x) {
    if constexpr (std::is_same_v<T, bool>) return !x;
    else return static_cast<T>(~x);
  }
};

struct Abs : OfNumbers {
  template <class T>
  static T apply(T x) {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
    return x < T(0) ? Sub::apply(T(0), x) : x;
  }
};

// Of integers none is infinite or NaN.
struct SignBit : OfAll {
  template <class T>
  static bool apply(T x) {
    if constexpr (std::is_floating_point_v<T>) return std::signbit(x);
    return x < T(0);
  }
};
KVC_UNARY(IsNan, OfAll, bool, x != x)
KVC_UNARY(IsInf, OfAll, bool, x == x && x - x != T(0))

// Integers are whole already.
template <class F>
struct Whole : OfNumbers {
  template <class T>
  static T apply(T x) {
    if constexpr (std::is_floating_point_v<T>) return F::apply(x);
    return x;
  }
};

bool round_decimals(const Step& step, const Context& context) {
  const int64_t decimals = step.integers[0];
  with_types_of<OfFloats>(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    const T power = static_cast<T>(std::pow(10.0, std::fabs(static_cast<double>(decimals))));
    const auto each = [&](auto rounded) {
      map<T, T>(step.tensors[0], step.tensors[1], context.threads, rounded);
    };
    if (decimals < 0) {
      each([power](T x) { return std::nearbyint(x / power) * power; });
    } else {
      each([power](T x) { return std::nearbyint(x * power) / power; });
    }
  });
  return true;
}

bool floats(Check& c) { return of_one(c, kWideFloats); }

}  // namespace

const Entry kUnary[] = {
    {"aten::neg", unary<Neg>, one<Neg>},
    {"aten::abs", unary<Abs>, one<Abs>},
    {"aten::logical_not", unary<LogicalNot>, one<LogicalNot>},
    {"aten::bitwise_not", unary<Not>, one<Not>},
    {"aten::acos", unary<Acos>, one<Acos>},
    {"aten::acosh", unary<Acosh>, one<Acosh>},
    {"aten::asin", unary<Asin>, one<Asin>},
    {"aten::asinh", unary<Asinh>, one<Asinh>},
    {"aten::atan", unary<Atan>, one<Atan>},
    {"aten::atanh", unary<Atanh>, one<Atanh>},
    {"aten::cosh", unary<Cosh>, one<Cosh>},
    {"aten::erfc", unary<Erfc>, one<Erfc>},
    {"aten::exp2", unary<Exp2>, one<Exp2>},
    {"aten::log10", unary<Log10>, one<Log10>},
    {"aten::sinh", unary<Sinh>, one<Sinh>},
    {"aten::tan", unary<Tan>, one<Tan>},
    {"aten::ceil", unary<Whole<Ceil>>, one<Whole<Ceil>>},
    {"aten::cos", unary_runs<Cos, &ProductKernels::cos>, one<Cos>},
    {"aten::erf", unary_runs<Erf, &ProductKernels::erf>, one<Erf>},
    {"aten::exp", unary_runs<Exp, &ProductKernels::exp>, one<Exp>},
    {"aten::expm1", unary_runs<Expm1, &ProductKernels::expm1>, one<Expm1>},
    {"aten::floor", unary<Whole<Floor>>, one<Whole<Floor>>},
    {"aten::log", unary_runs<Log, &ProductKernels::log>, one<Log>},
    {"aten::log1p", unary<Log1p>, one<Log1p>},
    {"aten::log2", unary<Log2>, one<Log2>},
    {"aten::reciprocal", unary<Reciprocal>, one<Reciprocal>},
    {"aten::round", unary<Whole<Round>>, one<Whole<Round>>},
    {"aten::rsqrt", unary<Rsqrt>, one<Rsqrt>},
    {"aten::sigmoid", unary_runs<Sigmoid, &ProductKernels::sigmoid>, one<Sigmoid>},
    {"aten::sin", unary_runs<Sin, &ProductKernels::sin>, one<Sin>},
    {"aten::sqrt", unary<Sqrt>, one<Sqrt>},
    {"aten::tanh", unary_runs<Tanh, &ProductKernels::tanh>, one<Tanh>},
    {"aten::trunc", unary<Whole<Trunc>>, one<Whole<Trunc>>},
    {"aten::sign", unary<Sign>, one<Sign>},
    {"aten::signbit", unary<SignBit>, one<SignBit>},
    {"aten::isnan", unary<IsNan>, one<IsNan>},
    {"aten::isinf", unary<IsInf>, one<IsInf>},
    {"aten::round.decimals", round_decimals, with<floats, 1, 0>},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
