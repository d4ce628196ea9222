// Functions that compilers can compute for several elements at once.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvc {

constexpr float kWhole = 12582912.0f;  // 1.5 * 2**23: what it is added to becomes whole

// 2**n e**r for |r| <= ln 2 / 2, where `shifted` is n + kWhole: a polynomial of r (Cephes,
// expf), scaled in two steps, which keep subnormal results.
static inline float exp_of_parts(float shifted, float r) {
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = p * (r * r) + r + 1.0f;
  int32_t whole;
  std::memcpy(&whole, &shifted, sizeof whole);
  whole -= 0x4B400000;  // the bits of kWhole
  const int32_t half = whole >> 1;
  const int32_t first = (half + 127) << 23, second = (whole - half + 127) << 23;
  float a, b;
  std::memcpy(&a, &first, sizeof a);
  std::memcpy(&b, &second, sizeof b);
  return y * a * b;
}

// e to the power of x, within 2 units in the last place; underflows to 0, overflows to
// infinity, keeps NaN. x = n ln 2 + r with |r| <= ln 2 / 2.
static inline float exp_of(float x) {
  const float bounded = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const float shifted = bounded * 1.44269504088896341f + kWhole;
  const float n = shifted - kWhole;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  return x != x ? x : exp_of_parts(shifted, r);
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
  const float size = x > -x ? x : -x, u = size < kTailEnd ? size : kTailEnd;
  const float head = (u + 0x1.8p15f) - 0x1.8p15f;  // a multiple of 2**-8
  const float rest = -0.5f * ((u - head) * (u + head));
  const float power = -0.5f * (head * head);
  const float shifted = power * 1.44269504088896341f + kWhole;
  const float n = shifted - kWhole;
  const float r = ((power - n * 0.693359375f) + n * 2.12194440e-4f) + rest;
  const float part = 1.0f / (u + kTailCentre), s = (u - kTailCentre) * part;
  float p = kTail[0];
  for (int i = 1; i <= kTailDegree; ++i) p = p * s + kTail[i];
  const float weight = p * part, e = exp_of_parts(shifted, r);
  return x < 0.0f ? (x * weight) * e : x * (1.0f - weight * e);
}

static inline double gelu_of(double x) {
  return x * 0.5 * (1.0 + std::erf(x * 0.70710678118654752440));
}

}  // namespace kvc
