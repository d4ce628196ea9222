// Activations: functions of one operand, some with numbers.
#include <cmath>

#include "runs.h"
#include "vector_math.h"

namespace kvc {
namespace {

KVC_UNARY(Relu, OfNumbers, T, x < T(0) ? T(0) : x)
KVC_UNARY(Silu, OfFloats, T, x / (T(1) + exp_of(-x)))
KVC_UNARY(Gelu, OfFloats, T, gelu_of(x))
// 1 + tanh(y) = 2 / (1 + exp(-2 y))
KVC_UNARY(GeluTanh, OfFloats, T,
          x / (T(1) + exp_of(T(-1.59576912160573071176) * (x + T(0.044715) * x * x * x))))

bool gelu(const Step& step, const Context& context) {
  if (step.integers[0] == 0) return unary_runs<Gelu, &ProductKernels::gelu>(step, context);
  return unary_runs<GeluTanh, &ProductKernels::gelu_tanh>(step, context);
}

// Calls function with a zero of the operand's type and a function that computes each element.
template <class Types, class F>
bool activation(const Step& step, const Context& context, const F& function) {
  with_types_of<Types>(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    function(zero, [&](auto one) {
      map<T, T>(step.tensors[0], step.tensors[1], context.threads, one);
    });
  });
  return true;
}

bool leaky_relu(const Step& step, const Context& context) {
  return activation<OfFloats>(step, context, [&](auto zero, auto each) {
    using T = decltype(zero);
    const T slope = scalar<T>(step, 0);
    each([slope](T x) { return x > T(0) ? x : x * slope; });
  });
}

bool elu(const Step& step, const Context& context) {
  return activation<OfFloats>(step, context, [&](auto zero, auto each) {
    using T = decltype(zero);
    const T scale = scalar<T>(step, 1), inner = scalar<T>(step, 2);
    const T below = scalar<T>(step, 0) * scale;
    each([=](T x) { return x < T(0) ? expm1_of(x * inner) * below : x * scale; });
  });
}

bool softplus(const Step& step, const Context& context) {
  return activation<OfFloats>(step, context, [&](auto zero, auto each) {
    using T = decltype(zero);
    const T beta = scalar<T>(step, 0), threshold = scalar<T>(step, 1);
    each([=](T x) {
      const T y = x * beta;
      return y > threshold ? x : std::log1p(exp_of(y)) / beta;
    });
  });
}

// Bounds of integers lose their fractions.
bool hardtanh(const Step& step, const Context& context) {
  return activation<OfNumbers>(step, context, [&](auto zero, auto each) {
    using T = decltype(zero);
    const T least = scalar<T>(step, 0), most = scalar<T>(step, 1);
    each([=](T x) { return Min::apply(Max::apply(x, least), most); });
  });
}

}  // namespace

const Entry kActivations[] = {
    {"aten::relu", unary<Relu>, one<Relu>},
    {"aten::silu", unary_runs<Silu, &ProductKernels::silu>, one<Silu>},
    {"aten::gelu", gelu, with<one<Gelu>, 1, 0>},
    {"aten::leaky_relu", leaky_relu, with<one<Gelu>, 1, 1>},
    {"aten::elu", elu, with<one<Gelu>, 3, 3>},
    {"aten::softplus", softplus, with<one<Gelu>, 2, 2>},
    {"aten::hardtanh", hardtanh, with<one<Relu>, 2, 2>},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
