// Functions of two operands, or of one and a number: quotients, powers, divisors, shifts.
#include <cmath>

#include "maps.h"

namespace kvc {
namespace {

// Quotients of integers, whose divisor is not 0, are those of C++; no processor traps.
template <class T>
T quotient(T a, T b) {
  return b == static_cast<T>(-1) && std::is_signed_v<T> ? Sub::apply(T(0), a)
                                                        : static_cast<T>(a / b);
}
template <class T>
T rest(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmod(a, b);
  else return b == static_cast<T>(-1) && std::is_signed_v<T> ? T(0) : static_cast<T>(a % b);
}

// Rounded down; a float is the whole number next to (a - rest) / b, as in Python.
struct DivFloor : OfNumbers {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (b == T(0)) return a / b;
      const T left = std::fmod(a, b);
      T exact = (a - left) / b;
      if (left != T(0) && (b < T(0)) != (left < T(0))) exact -= T(1);
      if (exact == T(0)) return std::copysign(T(0), a / b);
      const T whole = std::floor(exact);
      return exact - whole > T(0.5) ? whole + T(1) : whole;
    } else {
      const T whole = quotient(a, b);
      return (a < T(0)) != (b < T(0)) && rest(a, b) != T(0) ? Sub::apply(whole, T(1)) : whole;
    }
  }
};
struct DivTrunc : OfNumbers {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return std::trunc(a / b);
    else return quotient(a, b);
  }
};
struct Fmod : OfNumbers {
  template <class T>
  static T apply(T a, T b) { return rest(a, b); }
};
struct Remainder : OfNumbers {  // has the sign of the divisor
  template <class T>
  static T apply(T a, T b) {
    const T left = rest(a, b);
    return left != T(0) && (b < T(0)) != (left < T(0)) ? static_cast<T>(left + b) : left;
  }
};
KVC_BINARY(Div, OfFloats, T, a / b)

// Whether an integer of the tensor is 0.
bool has_zero(const Tensor& b) {
  bool found = false;
  with_types_of<OfIntegers>(b.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (b.count() == 0) return;
    const Loop<1> loop({&b});
    for (int64_t run = 0, runs = loop.runs(); run < runs && !found; ++run) {
      int64_t at[1];
      loop.start(run, at);
      const T* from = b.as<const T>() + at[0];
      for (int64_t i = 0; i < loop.inner(); ++i) found |= from[i * loop.step(0)] == T(0);
    }
  });
  return found;
}

template <class Op>
bool divide(const Step& step, const Context& context) {
  if (step.tensors[0].count() != 0 && has_zero(step.tensors[2])) {
    return context.refuse(Fault::kDivisionByZero, 0);
  }
  return binary<Op>(step, context);
}

template <class Op>
bool divide_scalar(const Step& step, const Context& context) {
  const DType dtype = step.tensors[0].dtype;
  const bool whole = dtype != DType::kFloat32 && dtype != DType::kFloat64;
  if (whole && step.integers[0] == 0 && step.tensors[0].count() != 0) {
    return context.refuse(Fault::kDivisionByZero, 0);
  }
  return binary_scalar<Op>(step, context);
}

// How quotients are rounded, the last integer: not at all, down, towards 0.
enum Rounding : int64_t { kDown = 0, kTowardsZero = 1 };

bool rounds(int64_t mode) { return mode == kDown || mode == kTowardsZero; }

bool div_mode(const Step& step, const Context& context) {
  if (step.integers[0] == kDown) return divide<DivFloor>(step, context);
  if (step.integers[0] == kTowardsZero) return divide<DivTrunc>(step, context);
  return binary<Div>(step, context);
}

bool div_scalar_mode(const Step& step, const Context& context) {
  if (step.integers[1] == kDown) return divide_scalar<DivFloor>(step, context);
  if (step.integers[1] == kTowardsZero) return divide_scalar<DivTrunc>(step, context);
  return binary_scalar<Div>(step, context);
}

// Powers of integers wrap around; those by negative exponents are 0 but for 1 and -1.
template <class T>
T whole_power(T x, T y) {
  if (y < T(0)) {
    if (x == T(1)) return x;
    if (x != static_cast<T>(-1)) return T(0);
    return (y & 1) != 0 ? x : T(1);
  }
  T power = 1;
  for (; y != 0; y = static_cast<T>(y >> 1), x = Mul::apply(x, x)) {
    if ((y & 1) != 0) power = Mul::apply(power, x);
  }
  return power;
}

struct Power : OfNumbers {
  template <class T>
  static T apply(T x, T y) {
    if constexpr (std::is_floating_point_v<T>) return std::pow(x, y);
    else return whole_power(x, y);
  }
};

// The exponent is one number; some have a shorter way.
struct PowerOfNumber : OfNumbers {
  template <class T>
  static T apply(T x, T y) {
    if (y == T(2)) return Mul::apply(x, x);
    if constexpr (std::is_floating_point_v<T>) {
      if (y == T(3)) return x * x * x;
      if (y == T(0.5)) return std::sqrt(x);
      if (y == T(-0.5)) return T(1) / std::sqrt(x);
      if (y == T(-1)) return T(1) / x;
      if (y == T(-2)) return T(1) / (x * x);
    }
    return Power::apply(x, y);
  }
};

bool scalar_power(const Step& step, const Context& context) {
  with_types_of<Power>(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    const T x = scalar<T>(step, 0);
    map<T, T>(step.tensors[0], step.tensors[1], context.threads,
              [x](T y) { return Power::apply(x, y); });
  });
  return true;
}

// x * 2**y: exact of an integer y, as in torch; else the power is of y's type.
template <class T, class B>
T scale_by_power(T x, B y) {
  if constexpr (std::is_integral_v<B>) {
    constexpr int64_t kFar = 10000;  // beyond it nothing changes
    const int64_t wide = static_cast<int64_t>(y);
    return std::ldexp(x, static_cast<int>(std::min(kFar, std::max(-kFar, wide))));
  } else {
    return x * static_cast<T>(std::exp2(y));
  }
}

bool ldexp(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1], &b = step.tensors[2];
  with_types_of<OfFloats>(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_type(b.dtype, [&](auto exponent) {
      using B = decltype(exponent);
      map<T, T, B>(out, a, b, context.threads, [](T x, B y) { return scale_by_power(x, y); });
    });
  });
  return true;
}

// Without a sign; the least integer of a type stays as it is, and so may a divisor of it.
template <class T>
T size_of(T x) {
  return x < T(0) ? Sub::apply(T(0), x) : x;
}
template <class T>
T common(T a, T b) {
  a = size_of(a);
  b = size_of(b);
  while (a != 0) {
    const T left = rest(b, a);
    b = a;
    a = left;
  }
  return b;
}
KVC_BINARY(Gcd, OfIntegers, T, common(a, b))
struct Lcm : OfIntegers {
  template <class T>
  static T apply(T a, T b) {
    const T divisor = common(a, b);
    return divisor == T(0) ? T(0) : size_of(Mul::apply(quotient(a, divisor), b));
  }
};

// Shifts by less than none or more than there are bits shift everything out.
struct ShiftLeft : OfIntegers {
  template <class T>
  static T apply(T a, T b) {
    using U = std::make_unsigned_t<T>;
    constexpr int64_t kBits = 8 * sizeof(T);
    return b < T(0) || b >= kBits ? T(0) : static_cast<T>(static_cast<U>(a) << b);
  }
};
struct ShiftRight : OfIntegers {
  template <class T>
  static T apply(T a, T b) {
    constexpr int64_t kBits = 8 * sizeof(T);
    if (b < T(0) || b >= kBits) return static_cast<T>(a < T(0) ? -1 : 0);
    return static_cast<T>(a >> b);
  }
};

// A number is greater and less than a NaN.
KVC_BINARY(Fmax, OfAll, T, a >= b || b != b ? a : b)
KVC_BINARY(Fmin, OfAll, T, a <= b || b != b ? a : b)
KVC_BINARY(Atan2, OfFloats, T, std::atan2(a, b))
KVC_BINARY(CopySign, OfFloats, T, std::copysign(a, b))
KVC_BINARY(Hypot, OfFloats, T, std::hypot(a, b))
KVC_BINARY(NextAfter, OfFloats, T, std::nextafter(a, b))

// Divisors are looked at before the first quotient, and must stay as they are until then.
template <class Op>
bool divided(Check& c) {
  c.steering = 0b100;
  c.in_place = true;
  return two<Op>(c);
}
// A number that is no zero may become one in a narrow type.
template <class Op>
bool divided_by_number(Check& c) {
  if (!one_and_number<Op>(c)) return false;
  bool held = true;
  with_types_of<OfIntegers>(c[1].dtype, [&](auto zero) {
    held = c.integer(0) == 0 || static_cast<decltype(zero)>(c.integer(0)) != 0;
  });
  return c.holds(held, "a divisor that does not fit its type", c.integer(0));
}
bool divided_as_told(Check& c) {
  return c.settings(1) && divided<DivFloor>(c) && (rounds(c.integer(0)) || c.dtype(1, kWideFloats));
}
bool divided_by_number_as_told(Check& c) {
  return c.settings(2, 1) && divided_by_number<DivFloor>(c) &&
         (rounds(c.integer(1)) || c.dtype(1, kWideFloats));
}

bool scaled_by_power(Check& c) {
  return c.operands(1, 3) && c.dtype(1, kWideFloats) && c.same_dtype(0, 1) && c.dtype(2, kTypes) &&
         c.fits(1, 0) && c.fits(2, 0);
}

}  // namespace

const Entry kBinary[] = {
    {"aten::div.Tensor_mode", div_mode, divided_as_told},
    {"aten::div.Scalar_mode", div_scalar_mode, divided_by_number_as_told},
    {"aten::floor_divide", divide<DivFloor>, divided<DivFloor>},
    {"aten::fmod.Tensor", divide<Fmod>, divided<Fmod>},
    {"aten::fmod.Scalar", divide_scalar<Fmod>, divided_by_number<Fmod>},
    {"aten::remainder.Tensor", divide<Remainder>, divided<Remainder>},
    {"aten::remainder.Scalar", divide_scalar<Remainder>, divided_by_number<Remainder>},
    {"aten::pow.Tensor_Tensor", binary<Power>, two<Power>},
    {"aten::pow.Tensor_Scalar", binary_scalar<PowerOfNumber>, one_and_number<PowerOfNumber>},
    {"aten::pow.Scalar", scalar_power, one_and_number<Power>},
    {"aten::ldexp.Tensor", ldexp, scaled_by_power},
    {"aten::gcd", binary<Gcd>, two<Gcd>},
    {"aten::lcm", binary<Lcm>, two<Lcm>},
    {"aten::bitwise_left_shift.Tensor", binary<ShiftLeft>, two<ShiftLeft>},
    {"aten::bitwise_right_shift.Tensor", binary<ShiftRight>, two<ShiftRight>},
    {"aten::fmax", binary<Fmax>, two<Fmax>},
    {"aten::fmin", binary<Fmin>, two<Fmin>},
    {"aten::atan2", binary<Atan2>, two<Atan2>},
    {"aten::copysign.Tensor", binary<CopySign>, two<CopySign>},
    {"aten::copysign.Scalar", binary_scalar<CopySign>, one_and_number<CopySign>},
    {"aten::hypot", binary<Hypot>, two<Hypot>},
    {"aten::nextafter", binary<NextAfter>, two<NextAfter>},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
