// Kernels that compute each element by itself, broadcast to the shape of the result.
//
// Every element is computed by the same expression wherever it lies, so results depend on
// neither the number of threads nor the strides.
#include <cmath>

#include "maps.h"

namespace kvc {
namespace {

KVC_BINARY(Div, OfFloats, T, a / b)
KVC_BINARY(And, OfBits, T, a & b)
KVC_BINARY(Or, OfBits, T, a | b)
KVC_BINARY(Xor, OfBits, T, a ^ b)
KVC_BINARY(LogicalAnd, OfAll, bool, a != T(0) && b != T(0))
KVC_BINARY(LogicalOr, OfAll, bool, a != T(0) || b != T(0))
KVC_BINARY(LogicalXor, OfAll, bool, (a != T(0)) != (b != T(0)))
KVC_BINARY(Eq, OfAll, bool, a == b)
KVC_BINARY(Ne, OfAll, bool, a != b)
KVC_BINARY(Lt, OfAll, bool, a < b)
KVC_BINARY(Le, OfAll, bool, a <= b)
KVC_BINARY(Gt, OfAll, bool, a > b)
KVC_BINARY(Ge, OfAll, bool, a >= b)

// a + alpha * b, or a - alpha * b.
template <class Op>
bool scaled(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1], &b = step.tensors[2];
  with_types_of<Op>(a.dtype, [&](auto zero) {
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
  with_types_of<Op>(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T y = Mul::apply(scalar<T>(step, 1), scalar<T>(step, 0));
    map<T, T>(out, a, context.threads, [y](T x) { return Op::apply(x, y); });
  });
  return true;
}

// other - alpha * self
bool rsub(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_types_of<Sub>(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T y = scalar<T>(step, 0), alpha = scalar<T>(step, 1);
    map<T, T>(out, a, context.threads,
              [y, alpha](T x) { return Sub::apply(y, Mul::apply(alpha, x)); });
  });
  return true;
}

// Whether an optional Scalar argument is there.
bool given(const Step& step, int index) {
  return step.integers[index] != kAbsent || step.numbers[index] == step.numbers[index];
}

bool clamp(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  with_types_of<OfNumbers>(a.dtype, [&](auto zero) {
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
  with_types_of<OfAll>(a.dtype, [&](auto zero) {
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

// A float as an integer: towards zero; as C++ leaves open what does not fit, 0 for it. To a
// narrow integer it becomes a wide one first, as in torch.
template <class R, class A>
R cast(A x) {
  if constexpr (std::is_same_v<A, BFloat16> || std::is_same_v<A, Half>) {
    return cast<R>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<R, bool>) {
    return x != A(0);
  } else if constexpr (std::is_floating_point_v<A> && std::is_integral_v<R>) {
    using Narrow = std::conditional_t<std::is_signed_v<R>, int32_t, int64_t>;
    using Whole = std::conditional_t<sizeof(R) < sizeof(int32_t), Narrow, R>;
    constexpr double kLeast = static_cast<double>(std::numeric_limits<Whole>::min());
    const double whole = std::trunc(static_cast<double>(x));
    return static_cast<R>(whole >= kLeast && whole < -kLeast ? static_cast<Whole>(whole) : 0);
  } else if constexpr (std::is_same_v<R, BFloat16> || std::is_same_v<R, Half>) {
    return R(static_cast<float>(x));
  } else {
    return static_cast<R>(x);
  }
}

template <class T>
void fill(const Step& step, const Context& context, T value) {
  map<T, T, bool>(step.tensors[0], step.tensors[1], step.tensors[2], context.threads,
                  [value](T x, bool chosen) { return chosen ? value : x; });
}

bool masked_fill(const Step& step, const Context& context) {
  with_type(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    fill<T>(step, context, scalar<T>(step, 0));
  });
  return true;
}

// The value is the only element of a tensor.
bool masked_fill_tensor(const Step& step, const Context& context) {
  const Tensor& value = step.tensors[3];
  with_type(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    with_type(value.dtype, [&](auto read) {
      fill<T>(step, context, cast<T>(*value.as<const decltype(read)>()));
    });
  });
  return true;
}

// As `with_type`, bfloat16 and float16 too.
template <class F>
void with_castable(DType dtype, const F& function) {
  if (dtype == DType::kBFloat16) return function(BFloat16{});
  if (dtype == DType::kFloat16) return function(Half{});
  return with_type(dtype, function);
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

// Refuses unless the only element is one that counts as true.
bool assert_true(const Step& step, const Context& context) {
  const Tensor& a = step.tensors[0];
  bool holds = false;
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    holds = *a.as<const T>() != T(0);
  });
  return holds || context.refuse(Fault::kNotTrue, 0);
}

bool numbers(Check& c) { return of_one(c, taken<OfNumbers>()); }

bool clamped_between(Check& c) {
  const auto bound = [&c](int i) { return !c[i] || (c.same_dtype(i, 1) && c.fits(i, 0)); };
  return c.operands(1, 4, 0b1100) && c.dtype(1, kTypes) && c.same_dtype(0, 1) && c.fits(1, 0) &&
         bound(2) && bound(3);
}

bool chosen(Check& c) {
  return c.operands(1, 4) && c.dtype(1, kBools) && c.same_dtype(0, 2) && c.same_dtype(3, 2) &&
         c.fits(1, 0) && c.fits(2, 0) && c.fits(3, 0);
}

bool masked(Check& c) {
  return c.dtype(1, kTypes) && c.same_dtype(0, 1) && c.dtype(2, kBools) && c.fits(1, 0) &&
         c.fits(2, 0);
}
bool masked_with_number(Check& c) { return c.operands(1, 3) && c.settings(1, 1) && masked(c); }
bool masked_with_tensor(Check& c) {
  return c.operands(1, 4) && masked(c) && c.dtype(3, kTypes) && c.count(3, 1);
}

bool casted(Check& c) {
  return c.operands(1, 2) && c.dtype(0, kAll) && c.dtype(1, kAll) && c.fits(1, 0);
}

bool asserted(Check& c) { return c.operands(0, 1) && c.dtype(0, kTypes) && c.count(0, 1); }

}  // namespace

const Entry kElementwise[] = {
    {"aten::add.Tensor", scaled<Add>, with<two<Add>, 1, 1>},
    {"aten::sub.Tensor", scaled<Sub>, with<two<Sub>, 1, 1>},
    {"aten::add.Scalar", scaled_scalar<Add>, with<one_and_number<Add>, 2, 2>},
    {"aten::sub.Scalar", scaled_scalar<Sub>, with<one_and_number<Sub>, 2, 2>},
    {"aten::rsub.Scalar", rsub, with<numbers, 2, 2>},
    {"aten::mul.Tensor", binary<Mul>, two<Mul>},
    {"aten::div.Tensor", binary<Div>, two<Div>},
    {"aten::maximum", binary<Max>, two<Max>},
    {"aten::minimum", binary<Min>, two<Min>},
    {"aten::bitwise_and.Tensor", binary<And>, two<And>},
    {"aten::bitwise_or.Tensor", binary<Or>, two<Or>},
    {"aten::bitwise_xor.Tensor", binary<Xor>, two<Xor>},
    {"aten::bitwise_and.Scalar", binary_scalar<And>, one_and_number<And>},
    {"aten::bitwise_or.Scalar", binary_scalar<Or>, one_and_number<Or>},
    {"aten::bitwise_xor.Scalar", binary_scalar<Xor>, one_and_number<Xor>},
    {"aten::logical_and", binary<LogicalAnd>, two<LogicalAnd>},
    {"aten::logical_or", binary<LogicalOr>, two<LogicalOr>},
    {"aten::logical_xor", binary<LogicalXor>, two<LogicalXor>},
    {"aten::mul.Scalar", binary_scalar<Mul>, one_and_number<Mul>},
    {"aten::div.Scalar", binary_scalar<Div>, one_and_number<Div>},
    {"aten::eq.Tensor", binary<Eq>, two<Eq>},
    {"aten::ne.Tensor", binary<Ne>, two<Ne>},
    {"aten::lt.Tensor", binary<Lt>, two<Lt>},
    {"aten::le.Tensor", binary<Le>, two<Le>},
    {"aten::gt.Tensor", binary<Gt>, two<Gt>},
    {"aten::ge.Tensor", binary<Ge>, two<Ge>},
    {"aten::eq.Scalar", binary_scalar<Eq>, one_and_number<Eq>},
    {"aten::ne.Scalar", binary_scalar<Ne>, one_and_number<Ne>},
    {"aten::lt.Scalar", binary_scalar<Lt>, one_and_number<Lt>},
    {"aten::le.Scalar", binary_scalar<Le>, one_and_number<Le>},
    {"aten::gt.Scalar", binary_scalar<Gt>, one_and_number<Gt>},
    {"aten::ge.Scalar", binary_scalar<Ge>, one_and_number<Ge>},
    {"aten::clamp", clamp, with<numbers, 2, 2>},
    {"aten::clamp.Tensor", clamp_between, clamped_between},
    {"aten::where.self", where, chosen},
    {"aten::masked_fill.Scalar", masked_fill, masked_with_number},
    {"aten::masked_fill.Tensor", masked_fill_tensor, masked_with_tensor},
    {"aten::_to_copy", to_copy, casted},
    {"aten::_assert_async.msg", assert_true, asserted},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
