// The error function's relatives, the gamma function's, and Hurwitz' zeta function.
#include <cmath>

#include "gamma_tables.h"
#include "special.h"

namespace kvc {
namespace {

constexpr double kInfinity = __builtin_inf(), kNaN = __builtin_nan("");
constexpr double kPi = 3.14159265358979323846, kEpsilon = 0x1p-53;

// exp(x**2) erfc(x)
double erfcx(double x) {
  const double size = std::fabs(x);
  const double above = std::isinf(x) ? 0 : chebyshev(kErfcx, (size - 3) / (size + 3)) / (size + 3);
  if (!(x < 0)) return above;
  if (x < -27) return kInfinity;
  // The square as an exact one and a rest.
  const double head = std::floor(size * 0x1p20) * 0x1p-20, rest = (size - head) * (size + head);
  return 2 * std::exp(head * head) * std::exp(rest) - above;
}

// The number below which lies a part of a normal distribution: `centred` is the part less 1/2,
// `tail` the part below or above, whichever is less (Wichura, algorithm AS 241, PPND16).
double normal_below(double centred, double tail) {
  constexpr double kA[] = {2.5090809287301226727e3,  3.3430575583588128105e4,
                           6.7265770927008700853e4,  4.5921953931549871457e4,
                           1.3731693765509461125e4,  1.9715909503065514427e3,
                           1.3314166789178437745e2,  3.3871328727963666080};
  constexpr double kB[] = {5.2264952788528545610e3,  2.8729085735721942674e4,
                           3.9307895800092710610e4,  2.1213794301586595867e4,
                           5.3941960214247511077e3,  6.8718700749205790830e2,
                           4.2313330701600911252e1,  1};
  constexpr double kC[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2,
                           2.41780725177450611770e-1, 1.27045825245236838258,
                           3.64784832476320460504,    5.76949722146069140550,
                           4.63033784615654529590,    1.42343711074968357734};
  constexpr double kD[] = {1.05075007164441684324e-9, 5.47593808499534494600e-4,
                           1.51986665636164571966e-2, 1.48103976427480074590e-1,
                           6.89767334985100004550e-1, 1.67638483018380384940,
                           2.05319162663775882187,    1};
  constexpr double kE[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                           1.24266094738807843860e-3, 2.65321895265761230930e-2,
                           2.96560571828504891230e-1, 1.78482653991729133580,
                           5.46378491116411436990,    6.65790464350110377720};
  constexpr double kF[] = {2.04426310338993978564e-15, 1.42151175831644588870e-7,
                           1.84631831751005468180e-5,  7.86869131145613259100e-4,
                           1.48753612908506148525e-2,  1.36929880922735805310e-1,
                           5.99832206555887937690e-1,  1};
  if (std::fabs(centred) <= 0.425) {
    const double r = 0.180625 - centred * centred;
    return centred * polynomial(kA, r) / polynomial(kB, r);
  }
  const double r = std::sqrt(-std::log(tail));
  const double size = r <= 5 ? polynomial(kC, r - 1.6) / polynomial(kD, r - 1.6)
                             : polynomial(kE, r - 5) / polynomial(kF, r - 5);
  return centred < 0 ? -size : size;
}

double ndtri(double p) {
  if (p == 0) return -kInfinity;
  if (p == 1) return kInfinity;
  return p < 0 || p > 1 ? kNaN : normal_below(p - 0.5, p < 0.5 ? p : 1 - p);
}

double erfinv(double x) {
  const double size = std::fabs(x);
  if (size == 1) return x * kInfinity;
  return size > 1 ? kNaN : normal_below(x / 2, (1 - size) / 2) / std::sqrt(2.0);
}

// Of torch's results the absolute value's logarithm.
double lgamma(double x) { return std::lgamma(x); }

// The derivative of lgamma, for positive x: recurrence, and the asymptotic series.
double digamma_above(double x) {
  constexpr double kFactors[] = {1.0 / 12,  -691.0 / 32760, 1.0 / 132, -1.0 / 240,
                                 1.0 / 252, -1.0 / 120,     1.0 / 12};
  double sum = 0;
  for (; x < 10; x += 1) sum -= 1 / x;
  const double square = 1 / (x * x);
  return sum + std::log(x) - 0.5 / x - square * polynomial(kFactors, square);
}

double digamma(double x) {
  if (x == 0) return std::copysign(kInfinity, -x);
  if (!(x < 0)) return digamma_above(x);
  if (x == std::trunc(x)) return kNaN;
  double whole;
  return digamma_above(1 - x) - kPi / std::tan(kPi * std::modf(x, &whole));
}

// The derivative of digamma, in the operand's type: near its poles the sine's rounding counts.
template <class T>
T trigamma(T x) {
  const bool reflected = x < T(0.5);
  const T sine = std::sin(T(kPi) * x);
  if (reflected) x = T(1) - x;
  T sum = 0;
  for (int i = 0; i < 6; ++i, x += T(1)) sum += T(1) / (x * x);
  const T square = T(1) / (x * x);
  const T series = T(1) / 6 - square * (T(1) / 30 - square * (T(1) / 42 - square / 30));
  sum += (T(1) + T(1) / (T(2) * x) + square * series) / x;
  return reflected ? T(kPi) * T(kPi) / (sine * sine) - sum : sum;
}

// The sum of (q + k)**-x for k from 0 on, q positive: its first terms, and of the others
// Euler's and Maclaurin's formula (Cephes, zeta).
double zeta_above(double x, double q) {
  // (2 k)! / B(2 k)
  constexpr double kFactors[] = {12,
                                 -720,
                                 30240,
                                 -1209600,
                                 47900160,
                                 -1.8924375803183791606e9,
                                 7.47242496e10,
                                 -2.950130727918164224e12,
                                 1.1646782814350067249e14,
                                 -4.5979787224074726105e15,
                                 1.8152105401943546773e17,
                                 -7.1661652561756670113e18};
  double sum = std::pow(q, -x), term = 0;
  for (int i = 0; i < 9 || q <= 9; ++i) {
    q += 1;
    term = std::pow(q, -x);
    sum += term;
    if (std::fabs(term) < kEpsilon * sum) return sum;
  }
  sum += term * q / (x - 1) - 0.5 * term;
  double product = 1, k = 0;
  for (double factor : kFactors) {
    product *= x + k;
    term /= q;
    const double next = product * term / factor;
    sum += next;
    if (std::fabs(next) < kEpsilon * std::fabs(sum)) return sum;
    product *= x + k + 1;
    term /= q;
    k += 2;
  }
  return sum;
}

double zeta(double x, double q) {
  if (x == 1) return kInfinity;
  if (x < 1) return kNaN;
  if (!(q <= 0)) return zeta_above(x, q);
  if (q == std::floor(q)) return kInfinity;
  if (x != std::floor(x)) return kNaN;
  // Terms below zero are those of another sum, up to -q.
  const double below = -q - std::floor(-q), sign = std::fmod(x, 2) == 0 ? 1 : -1;
  return zeta_above(x, 1 - below) + sign * (zeta_above(x, below) - zeta_above(x, 1 - q));
}

bool polygamma(const Step& step, const Context& context) {
  const int64_t n = step.integers[0];
  if (n == 0) return unary<InDouble<digamma>>(step, context);
  with_types_of<OfFloats>(step.tensors[1].dtype, [&](auto zero) {
    using T = decltype(zero);
    const Tensor &out = step.tensors[0], &a = step.tensors[1];
    if (n == 1) {
      map<T, T>(out, a, context.threads, [](T x) { return trigamma(x); });
      return;
    }
    const double order = static_cast<double>(n) + 1;
    const T factor = static_cast<T>((n % 2 != 0 ? 1 : -1) * std::exp(std::lgamma(order)));
    map<T, T>(out, a, context.threads, [=](T x) {
      return factor * static_cast<T>(zeta(order, static_cast<double>(x)));
    });
  });
  return true;
}

// u - log(1 + u), without loss where u is small.
double beyond_log(double u) {
  if (std::fabs(u) > 0.3) return u - std::log1p(u);
  const double s = u / (2 + u), square = s * s;
  double sum = 0;
  for (int i = 27; i >= 3; i -= 2) sum = sum * square + 1.0 / i;
  return u * s - 2 * s * square * sum;
}

// x**a exp(-x) / gamma(a + 1); for large a by Stirling's series.
double leading_term(double a, double x) {
  if (a < 20) return std::exp(a * std::log(x) - x - std::lgamma(a + 1));
  const double square = 1 / (a * a);
  constexpr double kFactors[] = {1.0 / 1188, -1.0 / 1680, 1.0 / 1260, -1.0 / 360, 1.0 / 12};
  const double rest = polynomial(kFactors, square) / a;
  return std::exp(-a * beyond_log((x - a) / a) - rest) / std::sqrt(2 * kPi * a);
}

// The parts of the gamma function's integral below and above x, as parts of it.
struct Parts {
  double below, above;
};

constexpr int kMostTerms = 2000;  // fewer are needed

Parts by_series(double a, double x) {
  double sum = 1, term = 1;
  for (int i = 1; i < kMostTerms && term > kEpsilon * sum; ++i) {
    term *= x / (a + i);
    sum += term;
  }
  const double below = leading_term(a, x) * sum;
  return {below, 1 - below};
}

// Legendre's continued fraction (DLMF 8.9.2), by Lentz's method.
Parts by_fraction(double a, double x) {
  constexpr double kTiny = 1e-300;
  double b = x + 1 - a, c = 1 / kTiny, d = 1 / b, product = d;
  for (int i = 1; i < kMostTerms; ++i) {
    const double factor = -i * (i - a);
    b += 2;
    d = factor * d + b;
    c = b + factor / c;
    d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
    if (std::fabs(c) < kTiny) c = kTiny;
    product *= d * c;
    if (std::fabs(d * c - 1) <= 2 * kEpsilon) break;
  }
  const double above = leading_term(a, x) * a * product;
  return {1 - above, above};
}

// For large a and x near it (Temme; DLMF 8.12.3).
Parts by_error_function(double a, double x) {
  const double phi = beyond_log((x - a) / a), eta = std::copysign(std::sqrt(2 * phi), x - a);
  double sum = 0;
  for (int k = 5; k >= 0; --k) {
    double row = 0;
    for (int n = 14; n >= 0; --n) row = row * eta + kTemme[k][n];
    sum = sum / a + row;
  }
  const double rest = std::exp(-a * phi) / std::sqrt(2 * kPi * a) * sum;
  const double middle = eta * std::sqrt(a / 2);
  return {std::erfc(-middle) / 2 - rest, std::erfc(middle) / 2 + rest};
}

// For small x, and a so small that nearly all lies below.
Parts by_power(double a, double x) {
  double sum = 0, factor = 1;
  for (int i = 1; i < kMostTerms; ++i) {
    factor *= -x / i;
    const double term = factor / (a + i);
    sum += term;
    if (std::fabs(term) <= kEpsilon * std::fabs(sum)) break;
  }
  // lgamma(1 + a), which a sum would round for small a.
  const double log_gamma =
      a > 1e-5 ? std::lgamma(1 + a)
               : a * (a * (kPi * kPi / 12 - a * 0.40068563438653142847) - 0.57721566490153286061);
  const double exponent = a * std::log(x) - log_gamma;
  const double above = -std::expm1(exponent) - std::exp(exponent) * a * sum;
  return {1 - above, above};
}

Parts gamma_parts(double a, double x) {
  if (x < 0 || a < 0) return {kNaN, kNaN};
  if (a == 0) return x > 0 ? Parts{1, 0} : Parts{kNaN, kNaN};
  if (x == 0) return {0, 1};
  if (std::isinf(a)) return std::isinf(x) ? Parts{kNaN, kNaN} : Parts{0, 1};
  if (std::isinf(x)) return {1, 0};
  if (a != a || x != x) return {kNaN, kNaN};
  if (a > 200 && std::fabs(x - a) < 0.3 * a) return by_error_function(a, x);
  if (x > 1 && x > a) return by_fraction(a, x);
  return x <= 1 && a < 0.5 ? by_power(a, x) : by_series(a, x);
}

double igamma(double a, double x) { return gamma_parts(a, x).below; }
double igammac(double a, double x) { return gamma_parts(a, x).above; }

}  // namespace

const Entry kSpecial[] = {
    {"aten::special_erfcx", unary<InDouble<erfcx>>, one<InDouble<erfcx>>},
    {"aten::special_ndtri", unary<InDouble<ndtri>>, one<InDouble<ndtri>>},
    {"aten::erfinv", unary<InDouble<erfinv>>, one<InDouble<erfinv>>},
    {"aten::lgamma", unary<InDouble<lgamma>>, one<InDouble<lgamma>>},
    {"aten::digamma", unary<InDouble<digamma>>, one<InDouble<digamma>>},
    {"aten::polygamma", polygamma, with<one<InDouble<digamma>>, 1, 0>},
    {"aten::special_zeta", binary<PairInDouble<zeta>>, two<PairInDouble<zeta>>},
    {"aten::igamma", binary<PairInDouble<igamma>>, two<PairInDouble<igamma>>},
    {"aten::igammac", binary<PairInDouble<igammac>>, two<PairInDouble<igammac>>},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
