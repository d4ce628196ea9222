// Kernels that compute each element by itself, broadcast to the shape of the result.
//
// Every element is computed by the same expression wherever it lies, so results depend on
// neither the number of threads nor the strides.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "elements.h"
#include "kernels.h"
#include "pool.h"
#include "products.h"
#include "types.h"
#include "vector_math.h"

namespace kvc {
namespace {

template <class R, class A, class F>
void map(const Tensor& out, const Tensor& a, int threads, const F& function) {
  if (out.count() == 0) return;
  const Loop<2> loop({&out, &a});
  for_runs(loop, kGrain, threads, [&](const int64_t(&at)[2], int64_t n) {
    R* to = out.as<R>() + at[0];
    const A* from = a.as<const A>() + at[1];
    const int64_t so = loop.step(0), sa = loop.step(1);
    if (so == 1 && sa == 1) {
      for (int64_t i = 0; i < n; ++i) to[i] = function(from[i]);
    } else {
      for (; n > 0; --n, to += so, from += sa) *to = function(*from);
    }
  });
}

template <class R, class A, class B, class F>
void map(const Tensor& out, const Tensor& a, const Tensor& b, int threads, const F& function) {
  if (out.count() == 0) return;
  const Loop<3> loop({&out, &a, &b});
  for_runs(loop, kGrain, threads, [&](const int64_t(&at)[3], int64_t n) {
    R* to = out.as<R>() + at[0];
    const A* x = a.as<const A>() + at[1];
    const B* y = b.as<const B>() + at[2];
    const int64_t so = loop.step(0), sa = loop.step(1), sb = loop.step(2);
    if (so == 1 && sa == 1 && sb == 1) {
      for (int64_t i = 0; i < n; ++i) to[i] = function(x[i], y[i]);
    } else if (so == 1 && sa == 1 && sb == 0) {
      const B same = y[0];
      for (int64_t i = 0; i < n; ++i) to[i] = function(x[i], same);
    } else {
      for (; n > 0; --n, to += so, x += sa, y += sb) *to = function(*x, *y);
    }
  });
}

template <class R, class A, class B, class C, class F>
void map(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& c, int threads,
         const F& function) {
  if (out.count() == 0) return;
  const Loop<4> loop({&out, &a, &b, &c});
  for_runs(loop, kGrain, threads, [&](const int64_t(&at)[4], int64_t n) {
    R* to = out.as<R>() + at[0];
    const A* x = a.as<const A>() + at[1];
    const B* y = b.as<const B>() + at[2];
    const C* z = c.as<const C>() + at[3];
    const int64_t so = loop.step(0), sa = loop.step(1), sb = loop.step(2), sc = loop.step(3);
    if (so == 1 && sa == 1 && sb == 1 && sc == 1) {
      for (int64_t i = 0; i < n; ++i) to[i] = function(x[i], y[i], z[i]);
    } else {
      for (; n > 0; --n, to += so, x += sa, y += sb, z += sc) *to = function(*x, *y, *z);
    }
  });
}

// A Scalar argument, the index-th, as a value of the type that is computed with.
template <class T>
T scalar(const Step& step, int index) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(step.integers[index]);
  return static_cast<T>(step.numbers[index]);
}

// Whether an optional Scalar argument is there.
bool given(const Step& step, int index) {
  return step.integers[index] != kAbsent || step.numbers[index] == step.numbers[index];
}

// Integers wrap around, as unsigned ones of their width do in C++.
template <class T, class F>
T wrapping(T a, T b, const F& function) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(function(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return static_cast<T>(function(a, b));
  }
}

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Sub {
  template <class T>
  static T apply(T a, T b) {
    return wrapping(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Mul {
  template <class T>
  static T apply(T a, T b) {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct Div {  // of floats alone
  template <class T>
  static T apply(T a, T b) {
    return a / b;
  }
};
struct Max {  // a NaN stays one; of zeros the first counts, as in torch's bounds
  template <class T>
  static T apply(T a, T b) {
    return a >= b || a != a ? a : b;
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return a <= b || a != a ? a : b;
  }
};
struct And {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
struct LogicalAnd {
  template <class T>
  static bool apply(T a, T b) { return a != T(0) && b != T(0); }
};
struct LogicalOr {
  template <class T>
  static bool apply(T a, T b) { return a != T(0) || b != T(0); }
};
struct LogicalXor {
  template <class T>
  static bool apply(T a, T b) { return (a != T(0)) != (b != T(0)); }
};
struct Eq {
  template <class T>
  static bool apply(T a, T b) { return a == b; }
};
struct Ne {
  template <class T>
  static bool apply(T a, T b) { return a != b; }
};
struct Lt {
  template <class T>
  static bool apply(T a, T b) { return a < b; }
};
struct Le {
  template <class T>
  static bool apply(T a, T b) { return a <= b; }
};
struct Gt {
  template <class T>
  static bool apply(T a, T b) { return a > b; }
};
struct Ge {
  template <class T>
  static bool apply(T a, T b) { return a >= b; }
};

template <class Op, class T>
constexpr bool kApplies =
    std::is_same_v<Op, Div> ? std::is_floating_point_v<T>
    : std::is_same_v<Op, And> || std::is_same_v<Op, Or> || std::is_same_v<Op, Xor>
        ? std::is_integral_v<T>
        : true;

// Both operands of one type, the result of it or bool.
template <class Op>
bool binary(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1], &b = step.tensors[2];
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kApplies<Op, T>) {
      using R = decltype(Op::apply(zero, zero));
      map<R, T, T>(out, a, b, context.threads, [](T x, T y) { return Op::apply(x, y); });
    }
  });
  return true;
}

template <class Op>
bool binary_scalar(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kApplies<Op, T>) {
      using R = decltype(Op::apply(zero, zero));
      const T y = scalar<T>(step, 0);
      map<R, T>(out, a, context.threads, [y](T x) { return Op::apply(x, y); });
    }
  });
  return true;
}

// a + alpha * b, or a - alpha * b.
template <class Op>
bool scaled(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1], &b = step.tensors[2];
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T alpha = scalar<T>(step, 0);
    if (alpha == T(1)) {
      map<T, T, T>(out, a, b, context.threads, [](T x, T y) { return Op::apply(x, y); });
    } else {
      map<T, T, T>(out, a, b, context.threads,
                   [alpha](T x, T y) { return Op::apply(x, Mul::apply(alpha, y)); });
    }
  });
  return true;
}

template <class Op>
bool scaled_scalar(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T y = Mul::apply(scalar<T>(step, 1), scalar<T>(step, 0));
    map<T, T>(out, a, context.threads, [y](T x) { return Op::apply(x, y); });
  });
  return true;
}

// other - alpha * self
bool rsub(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T y = scalar<T>(step, 0), alpha = scalar<T>(step, 1);
    map<T, T>(out, a, context.threads,
              [y, alpha](T x) { return Sub::apply(y, Mul::apply(alpha, x)); });
  });
  return true;
}

// A function of floats: of float32 in float, of float64 in double.
template <class F>
bool unary(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  if (a.dtype == DType::kFloat32) {
    map<float, float>(out, a, context.threads, [](float x) { return F::apply(x); });
  } else if (a.dtype == DType::kFloat64) {
    map<double, double>(out, a, context.threads, [](double x) { return F::apply(x); });
  }
  return true;
}

// As `unary`, with a loop made for this processor where elements lie side by side; the
// arithmetic is the same.
template <class F, ProductKernels::Run ProductKernels::*kRun>
bool unary_runs(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  if (a.dtype != DType::kFloat32 || !out.packed() || !a.packed()) return unary<F>(step, context);
  const ProductKernels::Run run = product_kernels().*kRun;
  parallel(out.count(), kGrain, context.threads, [&](int64_t begin, int64_t end, int) {
    run(a.as<const float>() + begin, end - begin, out.as<float>() + begin);
  });
  return true;
}

#define KVC_UNARY(Name, expression) \
  struct Name {                     \
    template <class T>              \
    static T apply(T x) {           \
      return expression;            \
    }                               \
  };
KVC_UNARY(Acos, std::acos(x))
KVC_UNARY(Acosh, std::acosh(x))
KVC_UNARY(Asin, std::asin(x))
KVC_UNARY(Asinh, std::asinh(x))
KVC_UNARY(Atan, std::atan(x))
KVC_UNARY(Atanh, std::atanh(x))
KVC_UNARY(Ceil, std::ceil(x))
KVC_UNARY(Cos, cos_of(x))
KVC_UNARY(Cosh, std::cosh(x))
KVC_UNARY(Erf, erf_of(x))
KVC_UNARY(Erfc, std::erfc(x))
KVC_UNARY(Exp, exp_of(x))
KVC_UNARY(Exp2, std::exp2(x))
KVC_UNARY(Expm1, expm1_of(x))
KVC_UNARY(Floor, std::floor(x))
KVC_UNARY(Log, log_of(x))
KVC_UNARY(Log10, std::log10(x))
KVC_UNARY(Log1p, std::log1p(x))
KVC_UNARY(Log2, std::log2(x))
KVC_UNARY(Reciprocal, T(1) / x)
KVC_UNARY(Relu, x < T(0) ? T(0) : x)
KVC_UNARY(Round, std::nearbyint(x))
KVC_UNARY(Rsqrt, T(1) / std::sqrt(x))
KVC_UNARY(Sigmoid, T(1) / (T(1) + exp_of(-x)))
KVC_UNARY(Silu, x / (T(1) + exp_of(-x)))
KVC_UNARY(Sin, sin_of(x))
KVC_UNARY(Sinh, std::sinh(x))
KVC_UNARY(Sqrt, std::sqrt(x))
KVC_UNARY(Tan, std::tan(x))
KVC_UNARY(Tanh, tanh_of(x))
KVC_UNARY(Trunc, std::trunc(x))
KVC_UNARY(Gelu, gelu_of(x))
// 1 + tanh(y) = 2 / (1 + exp(-2 y))
KVC_UNARY(GeluTanh, x / (T(1) + exp_of(T(-1.59576912160573071176) * (x + T(0.044715) * x * x * x))))
#undef KVC_UNARY

bool gelu(const Step& step, const Context& context) {
  if (step.integers[0] == 0) return unary_runs<Gelu, &ProductKernels::gelu>(step, context);
  return unary_runs<GeluTanh, &ProductKernels::gelu_tanh>(step, context);
}

struct Neg {
  template <class T>
  static T apply(T x) {
    if constexpr (std::is_integral_v<T>) return Sub::apply(T(0), x);
    return static_cast<T>(-x);
  }
};
struct Abs {
  template <class T>
  static T apply(T x) {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
    return x < T(0) ? Sub::apply(T(0), x) : x;
  }
};
struct Not {
  template <class T>
  static T apply(T x) {
    if constexpr (std::is_same_v<T, bool>) {
      return !x;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(~x);
    }
    return x;
  }
};

template <class F>
bool unary_any(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    map<T, T>(out, a, context.threads, [](T x) { return F::apply(x); });
  });
  return true;
}

template <class T>
T power(T x, T y) {
  if (y == T(2)) return x * x;
  if (y == T(3)) return x * x * x;
  if (y == T(0.5)) return std::sqrt(x);
  if (y == T(-0.5)) return T(1) / std::sqrt(x);
  if (y == T(-1)) return T(1) / x;
  if (y == T(-2)) return T(1) / (x * x);
  return std::pow(x, y);
}

bool power_scalar(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) {
      const T y = scalar<T>(step, 0);
      map<T, T>(out, a, context.threads, [y](T x) { return power(x, y); });
    }
  });
  return true;
}

bool scalar_power(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) {
      const T x = scalar<T>(step, 0);
      map<T, T>(out, a, context.threads, [x](T y) { return std::pow(x, y); });
    }
  });
  return true;
}

bool clamp(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool low = given(step, 0), high = given(step, 1);
    const T least = low ? scalar<T>(step, 0) : T(0), most = high ? scalar<T>(step, 1) : T(0);
    map<T, T>(out, a, context.threads, [=](T x) {
      if (low) x = Max::apply(x, least);
      return high ? Min::apply(x, most) : x;
    });
  });
  return true;
}

// Bounds that are left out bound nothing.
bool clamp_between(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  const Tensor &low = step.tensors[2] ? step.tensors[2] : a;
  const Tensor &high = step.tensors[3] ? step.tensors[3] : a;
  with_number(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (!step.tensors[3]) {
      map<T, T, T>(out, a, low, context.threads, [](T x, T y) { return Max::apply(x, y); });
    } else {
      map<T, T, T, T>(out, a, low, high, context.threads, [](T x, T least, T most) {
        return Min::apply(Max::apply(x, least), most);
      });
    }
  });
  return true;
}

bool where(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &condition = step.tensors[1];
  const Tensor &a = step.tensors[2], &b = step.tensors[3];
  with_size(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    map<T, bool, T, T>(out, condition, a, b, context.threads,
                       [](bool chosen, T x, T y) { return chosen ? x : y; });
  });
  return true;
}

bool masked_fill(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1], &mask = step.tensors[2];
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T fill = scalar<T>(step, 0);
    map<T, T, bool>(out, a, mask, context.threads,
                    [fill](T x, bool chosen) { return chosen ? fill : x; });
  });
  return true;
}

// A float as an integer: towards zero; as C++ leaves open what does not fit, 0 for it.
template <class R, class A>
R cast(A x) {
  if constexpr (std::is_same_v<A, BFloat16>) {
    return cast<R>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<R, bool>) {
    return x != A(0);
  } else if constexpr (std::is_floating_point_v<A> && std::is_integral_v<R>) {
    constexpr double kLeast = static_cast<double>(std::numeric_limits<R>::min());
    const double whole = std::trunc(static_cast<double>(x));
    return whole >= kLeast && whole < -kLeast ? static_cast<R>(whole) : R(0);
  } else {
    return static_cast<R>(x);
  }
}

// As `with_number`, bfloat16 too.
template <class F>
void with_castable(DType dtype, const F& function) {
  if (dtype == DType::kBFloat16) return function(BFloat16{});
  return with_number(dtype, function);
}

bool to_copy(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_castable(out.dtype, [&](auto made) {
    with_castable(a.dtype, [&](auto read) {
      using R = decltype(made);
      using A = decltype(read);
      map<R, A>(out, a, context.threads, [](A x) { return cast<R>(x); });
    });
  });
  return true;
}

}  // namespace

const Entry kElementwise[] = {
    {"aten::add.Tensor", scaled<Add>},
    {"aten::sub.Tensor", scaled<Sub>},
    {"aten::add.Scalar", scaled_scalar<Add>},
    {"aten::sub.Scalar", scaled_scalar<Sub>},
    {"aten::rsub.Scalar", rsub},
    {"aten::mul.Tensor", binary<Mul>},
    {"aten::div.Tensor", binary<Div>},
    {"aten::maximum", binary<Max>},
    {"aten::minimum", binary<Min>},
    {"aten::bitwise_and.Tensor", binary<And>},
    {"aten::bitwise_or.Tensor", binary<Or>},
    {"aten::bitwise_xor.Tensor", binary<Xor>},
    {"aten::logical_and", binary<LogicalAnd>},
    {"aten::logical_or", binary<LogicalOr>},
    {"aten::logical_xor", binary<LogicalXor>},
    {"aten::mul.Scalar", binary_scalar<Mul>},
    {"aten::div.Scalar", binary_scalar<Div>},
    {"aten::eq.Tensor", binary<Eq>},
    {"aten::ne.Tensor", binary<Ne>},
    {"aten::lt.Tensor", binary<Lt>},
    {"aten::le.Tensor", binary<Le>},
    {"aten::gt.Tensor", binary<Gt>},
    {"aten::ge.Tensor", binary<Ge>},
    {"aten::eq.Scalar", binary_scalar<Eq>},
    {"aten::ne.Scalar", binary_scalar<Ne>},
    {"aten::lt.Scalar", binary_scalar<Lt>},
    {"aten::le.Scalar", binary_scalar<Le>},
    {"aten::gt.Scalar", binary_scalar<Gt>},
    {"aten::ge.Scalar", binary_scalar<Ge>},
    {"aten::pow.Tensor_Scalar", power_scalar},
    {"aten::pow.Scalar", scalar_power},
    {"aten::clamp", clamp},
    {"aten::clamp.Tensor", clamp_between},
    {"aten::where.self", where},
    {"aten::masked_fill.Scalar", masked_fill},
    {"aten::_to_copy", to_copy},
    {"aten::neg", unary_any<Neg>},
    {"aten::abs", unary_any<Abs>},
    {"aten::logical_not", unary_any<Not>},
    {"aten::bitwise_not", unary_any<Not>},
    {"aten::acos", unary<Acos>},
    {"aten::acosh", unary<Acosh>},
    {"aten::asin", unary<Asin>},
    {"aten::asinh", unary<Asinh>},
    {"aten::atan", unary<Atan>},
    {"aten::atanh", unary<Atanh>},
    {"aten::cosh", unary<Cosh>},
    {"aten::erfc", unary<Erfc>},
    {"aten::exp2", unary<Exp2>},
    {"aten::log10", unary<Log10>},
    {"aten::sinh", unary<Sinh>},
    {"aten::tan", unary<Tan>},
    {"aten::ceil", unary<Ceil>},
    {"aten::cos", unary_runs<Cos, &ProductKernels::cos>},
    {"aten::erf", unary_runs<Erf, &ProductKernels::erf>},
    {"aten::exp", unary_runs<Exp, &ProductKernels::exp>},
    {"aten::expm1", unary_runs<Expm1, &ProductKernels::expm1>},
    {"aten::floor", unary<Floor>},
    {"aten::gelu", gelu},
    {"aten::log", unary_runs<Log, &ProductKernels::log>},
    {"aten::log1p", unary<Log1p>},
    {"aten::log2", unary<Log2>},
    {"aten::reciprocal", unary<Reciprocal>},
    {"aten::relu", unary<Relu>},
    {"aten::round", unary<Round>},
    {"aten::rsqrt", unary<Rsqrt>},
    {"aten::sigmoid", unary_runs<Sigmoid, &ProductKernels::sigmoid>},
    {"aten::silu", unary_runs<Silu, &ProductKernels::silu>},
    {"aten::sin", unary_runs<Sin, &ProductKernels::sin>},
    {"aten::sqrt", unary<Sqrt>},
    {"aten::tanh", unary_runs<Tanh, &ProductKernels::tanh>},
    {"aten::trunc", unary<Trunc>},
    {nullptr, nullptr},
};

}  // namespace kvc
