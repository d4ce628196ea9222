// Functions that drivers may round too freely, in a few units in the last place.

#define INFINITY uintBitsToFloat(0x7f800000u)

// e to the power of x (Cephes, expf): x = n ln 2 + r. Two steps keep subnormal results.
float exp_of(float x) {
  if (is_nan(x)) return x;
  float bounded = clamp(x, -104.0, 89.0);
  float n = floor(bounded * 1.44269504088896341 + 0.5);
  precise float r = (bounded - n * 0.693359375) + n * 2.12194440e-4;
  float p = 1.9875691500e-4;
  p = p * r + 1.3981999507e-3;
  p = p * r + 8.3334519073e-3;
  p = p * r + 4.1665795894e-2;
  p = p * r + 1.6666665459e-1;
  p = p * r + 5.0000001201e-1;
  float y = p * (r * r) + r + 1.0;
  int whole = int(n), part = whole >> 1;
  return y * intBitsToFloat((part + 127) << 23) * intBitsToFloat((whole - part + 127) << 23);
}

// The natural logarithm (Cephes, logf).
float log_of(float x) {
  if (is_nan(x) || x < 0.0) return uintBitsToFloat(0x7fc00000u);
  if (x == 0.0) return -INFINITY;
  if (x == INFINITY) return x;
  float lifted = x < 1.17549435e-38 ? x * 8388608.0 : x;
  int bits = floatBitsToInt(lifted);
  float e = float((bits >> 23) - 126) - (x < 1.17549435e-38 ? 23.0 : 0.0);
  float m = intBitsToFloat((bits & 0x007fffff) | 0x3f000000);
  if (m < 0.707106781186547524) {
    e -= 1.0;
    m = m + m - 1.0;
  } else {
    m -= 1.0;
  }
  float z = m * m, p = 7.0376836292e-2;
  p = p * m - 1.1514610310e-1;
  p = p * m + 1.1676998740e-1;
  p = p * m - 1.2420140846e-1;
  p = p * m + 1.4249322787e-1;
  p = p * m - 1.6668057665e-1;
  p = p * m + 2.0000714765e-1;
  p = p * m - 2.4999993993e-1;
  p = p * m + 3.3333331174e-1;
  float y = p * m * z + e * -2.12194440e-4 - 0.5 * z;
  return m + y + e * 0.693359375;
}

float tanh_of(float x) {
  float size = abs(x);
  if (is_nan(x) || x == 0.0) return x;  // which keeps the sign of a zero
  if (size > 9.0) return x > 0.0 ? 1.0 : -1.0;
  if (size < 0.625) {  // Cephes, tanhf
    float z = x * x, p = -5.70498872745e-3;
    p = p * z + 2.06390887954e-2;
    p = p * z - 5.37397155531e-2;
    p = p * z + 1.33314422036e-1;
    p = p * z - 3.33332819422e-1;
    return p * z * x + x;
  }
  float found = 1.0 - 2.0 / (exp_of(size + size) + 1.0);
  return x < 0.0 ? -found : found;
}

// The error function: a series near 0, and beyond, of Numerical Recipes' erfc.
float erf_of(float x) {
  if (is_nan(x)) return x;
  float size = abs(x);
  if (size < 1.0) {
    float z = x * x, p = 7.853861353153693e-5;  // Cephes, erff
    p = p * z - 8.010193625184903e-4;
    p = p * z + 5.188327685732524e-3;
    p = p * z - 2.685381193529856e-2;
    p = p * z + 1.128358514861418e-1;
    p = p * z - 3.761262582423300e-1;
    p = p * z + 1.128379165726710;
    return x * p;
  }
  float t = 1.0 / (1.0 + 0.5 * size);
  float p = 0.17087277;
  p = p * t - 0.82215223;
  p = p * t + 1.48851587;
  p = p * t - 1.13520398;
  p = p * t + 0.27886807;
  p = p * t - 0.18628806;
  p = p * t + 0.09678418;
  p = p * t + 0.37409196;
  p = p * t + 1.00002368;
  float found = 1.0 - t * exp_of(-size * size - 1.26551223 + t * p);
  return x < 0.0 ? -found : found;
}

// The first bits of 2 / pi after the point.
const uint TWO_OVER_PI[6] = uint[](
  0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u);

// The quarter turns of x beyond 4096, modulo 4, and the angle that is left (Payne and
// Hanek, 1983): x is whole * 2 ** (skipped + 2), and bits of 2 / pi that only make
// multiples of 4 are skipped. Products wrap around as turns do.
int whole_quarters(float x, out float angle) {
  uint bits = floatBitsToUint(x);
  int skipped = int((bits >> 23) & 0xffu) - 152;
  uint64_t whole = uint64_t((bits & 0x007fffffu) | 0x00800000u), ratio;
  if (skipped < 0) {
    ratio = ((uint64_t(TWO_OVER_PI[0]) << 32) | uint64_t(TWO_OVER_PI[1])) >> -skipped;
  } else {
    int word = skipped >> 5, left = skipped & 31;
    ratio = (uint64_t(TWO_OVER_PI[word]) << 32) | uint64_t(TWO_OVER_PI[word + 1]);
    if (left != 0) ratio = (ratio << left) | uint64_t(TWO_OVER_PI[word + 2] >> (32 - left));
  }
  uint64_t turned = whole * ratio;  // a quarter is 1 << 62
  uint64_t quarters = (turned + (uint64_t(1) << 61)) >> 62;
  angle = float(int64_t(turned - (quarters << 62))) * 3.406121580086e-19;
  if (x < 0.0) angle = -angle;
  return x < 0.0 ? -int(quarters) : int(quarters);
}

// The sine of x + turns * pi / 2 (Cephes, sinf).
float sine(float x, int turns) {
  if (is_nan(x) || abs(x) == INFINITY) return uintBitsToFloat(0x7fc00000u);
  if (x == 0.0 && turns == 0) return x;  // with its sign
  precise float r;
  int quarter;
  if (abs(x) > 4096.0) {
    float angle;
    quarter = whole_quarters(x, angle) + turns;
    r = angle;
  } else {
    float n = floor(x * 0.636619772367581 + 0.5);
    r = ((x - n * 1.5703125) - n * 4.837512969970703e-4) - n * 7.54978995489188e-8;
    quarter = int(n) + turns;
  }
  quarter &= 3;
  float z = r * r, found;
  if ((quarter & 1) == 0) {
    found = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
  } else {
    found = ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z -
            0.5 * z + 1.0;
  }
  return quarter >= 2 ? -found : found;
}

float silu_of(float x) { return x / (1.0 + exp_of(-x)); }
float gelu_of(float x) { return x * 0.5 * (1.0 + erf_of(x * 0.70710678118654752440)); }
float gelu_tanh_of(float x) {
  return x / (1.0 + exp_of(-1.59576912160573071176 * (x + 0.044715 * x * x * x)));
}
