// What kernels of single elements share: loops over tensors that are broadcast to the shape of
// the result, numbers among the arguments, arithmetic of one type.
#pragma once

#include <type_traits>

#include "elements.h"
#include "kernels.h"
#include "types.h"

namespace kvc {

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

// The types that an operator computes with.
struct OfFloats {
  template <class T>
  static constexpr bool kTakes = std::is_floating_point_v<T>;
};
struct OfIntegers {
  template <class T>
  static constexpr bool kTakes = std::is_integral_v<T> && !std::is_same_v<T, bool>;
};
struct OfBits {
  template <class T>
  static constexpr bool kTakes = std::is_integral_v<T>;
};
struct OfNumbers {
  template <class T>
  static constexpr bool kTakes = !std::is_same_v<T, bool>;
};
struct OfAll {
  template <class T>
  static constexpr bool kTakes = true;
};

// Operators: what `apply` makes of one element, or of two.
#define KVC_UNARY(Name, Types, Result, expression) \
  struct Name : Types {                            \
    template <class T>                             \
    static Result apply(T x) {                     \
      return static_cast<Result>(expression);      \
    }                                              \
  };
#define KVC_BINARY(Name, Types, Result, expression) \
  struct Name : Types {                             \
    template <class T>                              \
    static Result apply(T a, T b) {                 \
      return static_cast<Result>(expression);       \
    }                                               \
  };

KVC_BINARY(Add, OfAll, T, wrapping(a, b, [](auto x, auto y) { return x + y; }))
KVC_BINARY(Sub, OfNumbers, T, wrapping(a, b, [](auto x, auto y) { return x - y; }))
KVC_BINARY(Mul, OfAll, T, wrapping(a, b, [](auto x, auto y) { return x * y; }))
// A NaN stays one; of zeros the first counts, as in torch's bounds.
KVC_BINARY(Max, OfAll, T, a >= b || a != a ? a : b)
KVC_BINARY(Min, OfAll, T, a <= b || a != a ? a : b)

// As `with_type`, of the types that an operator takes; schema/backends/cpu.py takes no others.
template <class Op, class F>
void with_types_of(DType dtype, const F& function) {
  with_type(dtype, [&](auto zero) {
    if constexpr (Op::template kTakes<decltype(zero)>) function(zero);
  });
}

// The dtypes that an operator takes, and whether its results are bools whatever it takes.
template <class Op>
constexpr DTypes taken() {
  DTypes found = 0;
  const auto add = [&found](DType dtype, bool takes) { found |= takes ? only(dtype) : 0; };
  add(DType::kFloat32, Op::template kTakes<float>);
  add(DType::kFloat64, Op::template kTakes<double>);
  add(DType::kInt64, Op::template kTakes<int64_t>);
  add(DType::kInt32, Op::template kTakes<int32_t>);
  add(DType::kInt16, Op::template kTakes<int16_t>);
  add(DType::kInt8, Op::template kTakes<int8_t>);
  add(DType::kUInt8, Op::template kTakes<uint8_t>);
  add(DType::kBool, Op::template kTakes<bool>);
  return found;
}
template <class Op>
using Taken = std::conditional_t<Op::template kTakes<float>, float, int64_t>;

// Contracts of operators: the result has the dtype of the operands, or is of bools.
inline bool result_of(Check& c, bool truth) {
  return truth ? c.dtype(0, kBools) : c.same_dtype(0, 1);
}

inline bool of_one(Check& c, DTypes taken, bool truth = false) {
  return c.operands(1, 2) && c.dtype(1, taken) && result_of(c, truth) && c.same_shape(1, 0);
}
inline bool of_two(Check& c, DTypes taken, bool truth = false) {
  return c.operands(1, 3) && c.dtype(1, taken) && c.same_dtype(2, 1) && result_of(c, truth) &&
         c.fits(1, 0) && c.fits(2, 0);
}
template <class Op>
bool one(Check& c) {
  return of_one(c, taken<Op>(), std::is_same_v<decltype(Op::apply(Taken<Op>{})), bool>);
}
template <class Op>
bool two(Check& c) {
  return of_two(c, taken<Op>(),
                std::is_same_v<decltype(Op::apply(Taken<Op>{}, Taken<Op>{})), bool>);
}
template <class Op>
bool one_and_number(Check& c) {
  return c.settings(1, 1) &&
         of_one(c, taken<Op>(),
                std::is_same_v<decltype(Op::apply(Taken<Op>{}, Taken<Op>{})), bool>);
}
// With some integers and numbers.
template <Contract kContract, int kIntegers, int kNumbers>
bool with(Check& c) {
  return c.settings(kIntegers, kNumbers) && kContract(c);
}

// Kernels of one operand, of two of one type, and of one and a number.
template <class Op>
bool unary(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_types_of<Op>(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    using R = decltype(Op::apply(zero));
    map<R, T>(out, a, context.threads, [](T x) { return Op::apply(x); });
  });
  return true;
}

template <class Op>
bool binary(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1], &b = step.tensors[2];
  with_types_of<Op>(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    using R = decltype(Op::apply(zero, zero));
    map<R, T, T>(out, a, b, context.threads, [](T x, T y) { return Op::apply(x, y); });
  });
  return true;
}

template <class Op>
bool binary_scalar(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_types_of<Op>(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    using R = decltype(Op::apply(zero, zero));
    const T y = scalar<T>(step, 0);
    map<R, T>(out, a, context.threads, [y](T x) { return Op::apply(x, y); });
  });
  return true;
}

}  // namespace kvc
