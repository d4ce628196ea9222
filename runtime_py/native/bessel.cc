// Bessel's functions and Airy's.
#include <cmath>

#include "bessel_tables.h"
#include "special.h"

namespace kvc {
namespace {

constexpr double kInfinity = __builtin_inf(), kNaN = __builtin_nan("");
constexpr double kPi = 3.14159265358979323846;

// exp(-|x|) I0(x) and exp(-|x|) I1(x).
double i0e(double x) {
  const double size = std::fabs(x);
  if (size <= 8) return chebyshev(kI0, size / 4 - 1);
  return chebyshev(kI0Far, 16 / size - 1) / std::sqrt(size);
}
double i1e(double x) {
  const double size = std::fabs(x);
  const double made = size <= 8 ? chebyshev(kI1, size / 4 - 1) * size
                                : chebyshev(kI1Far, 16 / size - 1) / std::sqrt(size);
  return x < 0 ? -made : made;
}

// Where exp(|x|) overflows in the operand's type, so do these, as in torch.
template <double (*kScaled)(double)>
struct Unscaled : OfFloats {
  template <class T>
  static T apply(T x) {
    const double power = std::exp(std::fabs(x));
    return static_cast<T>(power * kScaled(static_cast<double>(x)));
  }
};

// K0(x) and K1(x), times exp(x).
double k0e(double x) {
  if (x == 0) return kInfinity;
  if (x < 0) return kNaN;
  if (x > 2) return chebyshev(kK0Far, 4 / x - 1) / std::sqrt(x);
  const double e = std::exp(x), log = std::log(x / 2);
  return (chebyshev(kK0, x * x / 2 - 1) - log * e * i0e(x)) * e;
}
double k1e(double x) {
  if (x == 0) return kInfinity;
  if (x < 0) return kNaN;
  if (x > 2) return chebyshev(kK1Far, 4 / x - 1) / std::sqrt(x);
  const double e = std::exp(x), log = std::log(x / 2);
  return (chebyshev(kK1, x * x / 2 - 1) / x + log * e * i1e(x)) * e;
}
double k0(double x) { return k0e(x) * std::exp(-x); }
double k1(double x) { return k1e(x) * std::exp(-x); }

// From 8 on: J and Y are the modulus times the cosine and the sine of x less a quarter or
// three quarters of pi, and a small phase.
struct Far {
  double root, sum, difference, p, q;  // sum and difference of the sine and the cosine of x

  template <int N, int M>
  Far(double x, const double (&p_factors)[N], const double (&q_factors)[M])
      : root(std::sqrt(kPi * x)),
        sum(std::sin(x) + std::cos(x)),
        difference(std::sin(x) - std::cos(x)),
        p(chebyshev(p_factors, 128 / (x * x) - 1)),
        q(chebyshev(q_factors, 128 / (x * x) - 1) * (8 / x)) {}
};

double j0(double x) {
  const double size = std::fabs(x), square = x * x;
  if (size <= 8) {
    const double zeros = (square - 5.783185962946784521) * (square - 30.47126234366208640);
    return zeros * chebyshev(kJ0, square / 32 - 1);
  }
  const Far far(size, kP0, kQ0);
  return (far.p * far.sum - far.q * far.difference) / far.root;
}

double j1(double x) {
  const double size = std::fabs(x), square = x * x;
  if (size <= 8) {
    const double zeros = (square - 14.68197064212389326) * (square - 49.21845632169460367);
    return x * zeros * chebyshev(kJ1, square / 32 - 1);
  }
  const Far far(size, kP1, kQ1);
  const double made = (far.p * far.difference + far.q * far.sum) / far.root;
  return x < 0 ? -made : made;
}

double y0(double x) {
  if (x == 0) return -kInfinity;
  if (x < 0) return kNaN;
  if (x <= 8) return chebyshev(kY0, x * x / 32 - 1) + 2 / kPi * std::log(x) * j0(x);
  const Far far(x, kP0, kQ0);
  return (far.p * far.difference + far.q * far.sum) / far.root;
}

double y1(double x) {
  if (x == 0) return -kInfinity;
  if (x < 0) return kNaN;
  if (x <= 8) {
    return x * chebyshev(kY1, x * x / 32 - 1) + 2 / kPi * (std::log(x) * j1(x) - 1 / x);
  }
  const Far far(x, kP1, kQ1);
  return (far.q * far.difference - far.p * far.sum) / far.root;
}

double spherical_j0(double x) {
  if (std::isinf(x)) return 0;
  return std::fabs(x) < 1e-9 ? 1 : std::sin(x) / x;
}

double airy(double x) {
  if (std::isinf(x)) return kNaN;
  if (x >= -4 && x <= 2) return chebyshev(kAiry, (x + 1) / 3);
  const double size = std::fabs(x), z = size * std::sqrt(size) * 2 / 3;
  const double root = std::sqrt(kPi * std::sqrt(size));
  if (x > 0) {
    constexpr double kAtTwo = 1.8856180831641267317;
    return chebyshev(kAiryFar, 2 * kAtTwo / z - 1) * std::exp(-z) / (2 * root);
  }
  const double part = 16.0 / 3 / z, y = 2 * part * part - 1;
  const double sum = std::sin(z) + std::cos(z), difference = std::sin(z) - std::cos(z);
  const double p = chebyshev(kAiryP, y), q = chebyshev(kAiryQ, y) * part;
  return (p * sum + q * difference) / (std::sqrt(2.0) * root);
}

}  // namespace

const Entry kBessel[] = {
    {"aten::i0", unary<Unscaled<i0e>>, one<Unscaled<i0e>>},
    {"aten::special_i0e", unary<InDouble<i0e>>, one<InDouble<i0e>>},
    {"aten::special_i1", unary<Unscaled<i1e>>, one<Unscaled<i1e>>},
    {"aten::special_i1e", unary<InDouble<i1e>>, one<InDouble<i1e>>},
    {"aten::special_modified_bessel_i0", unary<Unscaled<i0e>>, one<Unscaled<i0e>>},
    {"aten::special_modified_bessel_i1", unary<Unscaled<i1e>>, one<Unscaled<i1e>>},
    {"aten::special_modified_bessel_k0", unary<InDouble<k0>>, one<InDouble<k0>>},
    {"aten::special_modified_bessel_k1", unary<InDouble<k1>>, one<InDouble<k1>>},
    {"aten::special_scaled_modified_bessel_k0", unary<InDouble<k0e>>, one<InDouble<k0e>>},
    {"aten::special_scaled_modified_bessel_k1", unary<InDouble<k1e>>, one<InDouble<k1e>>},
    {"aten::special_bessel_j0", unary<InDouble<j0>>, one<InDouble<j0>>},
    {"aten::special_bessel_j1", unary<InDouble<j1>>, one<InDouble<j1>>},
    {"aten::special_bessel_y0", unary<InDouble<y0>>, one<InDouble<y0>>},
    {"aten::special_bessel_y1", unary<InDouble<y1>>, one<InDouble<y1>>},
    {"aten::special_spherical_bessel_j0", unary<InDouble<spherical_j0>>, one<InDouble<spherical_j0>>},
    {"aten::special_airy_ai", unary<InDouble<airy>>, one<InDouble<airy>>},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
