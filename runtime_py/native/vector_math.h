// Functions that compilers can compute for several elements at once.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvc {

// e to the power of x, within 2 units in the last place; underflows to 0, overflows to
// infinity, keeps NaN. x = n ln 2 + r with |r| <= ln 2 / 2, and a polynomial of r (Cephes,
// expf). The two steps of the scaling keep subnormal results.
static inline float exp_of(float x) {
  const float bounded = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const float shifted = bounded * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2**23
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = p * (r * r) + r + 1.0f;
  int32_t whole;
  std::memcpy(&whole, &shifted, sizeof whole);
  whole -= 0x4B400000;  // the bits of 1.5 * 2**23
  const int32_t half = whole >> 1;
  const int32_t first = (half + 127) << 23, second = (whole - half + 127) << 23;
  float a, b;
  std::memcpy(&a, &first, sizeof a);
  std::memcpy(&b, &second, sizeof b);
  return x != x ? x : y * a * b;
}

static inline double exp_of(double x) { return std::exp(x); }

}  // namespace kvc
