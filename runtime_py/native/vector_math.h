// Functions that compilers can compute for several elements at once.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvc {

static inline float float_of(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

static inline int32_t bits_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float size_of(float x) { return x > -x ? x : -x; }

constexpr float kWhole = 12582912.0f;        // 1.5 * 2**23: what it is added to becomes whole
constexpr int32_t kBitsOfWhole = 0x4B400000;

// e**r - 1 for |r| <= ln 2 / 2 (Cephes, expf).
static inline float expm1_of_small(float r) {
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + r;
}

// 2**n e**r, where `shifted` is n + kWhole; scaled in two steps, which keep subnormal results.
static inline float exp_of_parts(float shifted, float r) {
  const int32_t whole = bits_of(shifted) - kBitsOfWhole, half = whole >> 1;
  const float a = float_of((half + 127) << 23), b = float_of((whole - half + 127) << 23);
  return (expm1_of_small(r) + 1.0f) * a * b;
}

// x as n ln 2 + r with |r| <= ln 2 / 2; `shifted` is n + kWhole.
struct Halvings {
  float shifted, n, r;

  explicit Halvings(float x)
      : shifted(x * 1.44269504088896341f + kWhole),
        n(shifted - kWhole),
        r((x - n * 0.693359375f) + n * 2.12194440e-4f) {}
};

// e to the power of x, within 2 units in the last place; underflows to 0, overflows to
// infinity, keeps NaN.
static inline float exp_of(float x) {
  const Halvings of(x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x));
  return x != x ? x : exp_of_parts(of.shifted, of.r);
}

static inline double exp_of(double x) { return std::exp(x); }

// The part of a normal distribution below -u is e**(-u**2 / 2) / (u + 4) times a polynomial
// of (u - 4) / (u + 4), within 1e-8: weighted least squares, repeated until the greatest
// relative error is as small as it can be. Where u is 14.5 the power underflows.
constexpr int kTailDegree = 9;
constexpr float kTail[kTailDegree + 1] = {-1.31501438e-4f, 1.8036025e-4f,   1.57027412e-3f,
                                          -3.5130335e-3f,  -7.52554648e-3f, 6.04038946e-2f,
                                          -1.86523393e-1f, 3.87136906e-1f,  -6.07896566e-1f,
                                          7.55285144e-1f};
constexpr float kTailEnd = 14.5f, kTailCentre = 4.0f;

// x times the part of a normal distribution below x, within 5 units in the last place, those
// of tiny results too. u**2 is an exact square and a small rest.
static inline float gelu_of(float x) {
  const float size = size_of(x), u = size < kTailEnd ? size : kTailEnd;
  const float head = (u + 0x1.8p15f) - 0x1.8p15f;  // a multiple of 2**-8
  const float rest = -0.5f * ((u - head) * (u + head));
  const Halvings of(-0.5f * (head * head));
  const float part = 1.0f / (u + kTailCentre), s = (u - kTailCentre) * part;
  float p = kTail[0];
  for (int i = 1; i <= kTailDegree; ++i) p = p * s + kTail[i];
  const float weight = p * part, e = exp_of_parts(of.shifted, of.r + rest);
  return x < 0.0f ? (x * weight) * e : x * (1.0f - weight * e);
}

static inline double gelu_of(double x) {
  return x * 0.5 * (1.0 + std::erf(x * 0.70710678118654752440));
}

// e to the power of x, less 1, within 3 units in the last place.
static inline float expm1_of(float x) {
  const Halvings of(x < -18.0f ? -18.0f : (x > 89.0f ? 89.0f : x));
  const float half = float_of((bits_of(of.shifted) - kBitsOfWhole + 126) << 23);
  const float whole = 2.0f * (expm1_of_small(of.r) * half + (half - 0.5f));
  return x != x || size_of(x) < 1e-20f ? x : whole;
}

static inline double expm1_of(double x) { return std::expm1(x); }

static inline float tanh_of(float x) {
  const float size = size_of(x), less = expm1_of(size > 10.0f ? 20.0f : 2.0f * size);
  return std::copysign(less / (less + 2.0f), x);
}

static inline double tanh_of(double x) { return std::tanh(x); }

// Polynomials of x**2 for small x, and of |x| for the logarithm of what is lacking to 1, made
// as kTail.
static inline float erf_of(float x) {
  const float size = size_of(x), square = x * x, u = size < 3.95f ? size : 3.95f;
  float p = -6.20327928e-4f;
  p = p * square + 5.03218646e-3f;
  p = p * square - 2.6791467e-2f;
  p = p * square + 1.12824555e-1f;
  p = p * square - 3.76125505e-1f;
  p = p * square + 1.28379157e-1f;
  float q = 2.00996285e-4f;
  q = q * u - 3.09229266e-3f;
  q = q * u + 2.24202195e-2f;
  q = q * u - 1.04327508e-1f;
  q = q * u - 6.36737227e-1f;
  q = q * u - 1.12793613f;
  q = q * u - 1.33574719e-4f;
  const float far = std::copysign(1.0f - exp_of(q), x);
  return size < 0.875f || x != x ? x + x * p : far;
}

static inline double erf_of(double x) { return std::erf(x); }

// Cephes, logf: x is 2**e times m, which lies around 1.
static inline float log_of(float x) {
  constexpr float kLeast = 0x1p-126f, kInfinity = __builtin_inff();
  const int32_t bits = bits_of(x < kLeast ? x * 0x1p23f : x);
  const int32_t e = (bits - 0x3F3504F3) >> 23;  // of half the root of 2
  const float z = float_of(bits - (e << 23)) - 1.0f, square = z * z;
  const float n = static_cast<float>(x < kLeast ? e - 23 : e);
  float p = 7.0376836292e-2f;
  p = p * z - 1.1514610310e-1f;
  p = p * z + 1.1676998740e-1f;
  p = p * z - 1.2420140846e-1f;
  p = p * z + 1.4249322787e-1f;
  p = p * z - 1.6668057665e-1f;
  p = p * z + 2.0000714765e-1f;
  p = p * z - 2.4999993993e-1f;
  p = p * z + 3.3333331174e-1f;
  const float rest = (p * z * square - n * 2.12194440e-4f) - 0.5f * square;
  const float made = (z + rest) + n * 0.693359375f;
  const float other = x == 0.0f ? -kInfinity : (x < 0.0f ? __builtin_nanf("") : x);
  return x > 0.0f && x < kInfinity ? made : other;
}

static inline double log_of(double x) { return std::log(x); }

// The sine of x and `quarters` quarter turns more, for |x| < kNear: what is left of x beside
// whole quarters, exact to 53 bits, and Taylor's series.
constexpr float kNear = 0x1p20f;
static inline float sine_of_near(float x, int64_t quarters) {
  constexpr double kShift = 0x1.8p52;
  const double shifted = x * 0.63661977236758134308 + kShift, n = shifted - kShift;
  // Half of pi in two parts; the first has 33 bits (fdlibm).
  const double r = (x - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
  const double square = r * r;
  double s = 1.0 / 362880, c = -1.0 / 3628800;
  s = s * square - 1.0 / 5040;
  s = s * square + 1.0 / 120;
  s = s * square - 1.0 / 6;
  c = c * square + 1.0 / 40320;
  c = c * square - 1.0 / 720;
  c = c * square + 1.0 / 24;
  c = c * square - 0.5;
  int64_t turn;
  std::memcpy(&turn, &shifted, sizeof turn);
  turn += quarters;
  const float made = static_cast<float>((turn & 1) != 0 ? c * square + 1.0 : (s * square + 1.0) * r);
  return (turn & 2) != 0 ? -made : made;
}

static inline float sin_of(float x) {
  return size_of(x) < kNear ? sine_of_near(x, 0) : std::sin(x);
}
static inline float cos_of(float x) {
  return size_of(x) < kNear ? sine_of_near(x, 1) : std::cos(x);
}
static inline double sin_of(double x) { return std::sin(x); }
static inline double cos_of(double x) { return std::cos(x); }

}  // namespace kvc
