// Eight floats at a time, for the instruction set that the file is compiled for.
//
// Included after `#pragma GCC target`, in a namespace of its own for each instruction set.
typedef float Float8 __attribute__((vector_size(32), aligned(4), may_alias));

inline Float8 load(const float* from) { return *reinterpret_cast<const Float8*>(from); }

// The first n < 8 floats, zeros after them.
inline Float8 load(const float* from, int64_t n) {
  float whole[8] = {};
  for (int64_t i = 0; i < n; ++i) whole[i] = from[i];
  return load(whole);
}

inline Float8 splat(float x) { return Float8{x, x, x, x, x, x, x, x}; }

// a * b + c, rounded once where the instruction set can.
inline Float8 multiply_add(Float8 a, Float8 b, Float8 c) {
#if defined(KVC_AVX2)
  return (Float8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

inline float sum(Float8 x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

inline void store(float* to, Float8 x) { *reinterpret_cast<Float8*>(to) = x; }
