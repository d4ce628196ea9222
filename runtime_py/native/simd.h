// Eight floats at a time, for the instruction set that the file is compiled for.
//
// Included after `#pragma GCC target`, in a namespace of its own for each instruction set.
typedef float Float8 __attribute__((vector_size(32)));
// As it lies in memory.
typedef float Floats8 __attribute__((vector_size(32), aligned(4), may_alias));

inline Float8 load(const float* from) { return *reinterpret_cast<const Floats8*>(from); }

// The same of float16 and bfloat16.
inline Float8 load(const Half* from) {
#if defined(KVC_AVX2)
  return (Float8)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Float8 whole;
  for (int i = 0; i < 8; ++i) whole[i] = static_cast<float>(from[i]);
  return whole;
#endif
}

inline Float8 load(const BFloat16* from) {
  typedef uint32_t Uint32x8 __attribute__((vector_size(32)));
#if defined(KVC_AVX2)
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Float8)((Uint32x8)_mm256_cvtepu16_epi32(bits) << 16);
#else
  typedef uint16_t Bits8 __attribute__((vector_size(16), aligned(2), may_alias));
  const auto bits = *reinterpret_cast<const Bits8*>(from);
  return (Float8)(__builtin_convertvector(bits, Uint32x8) << 16);
#endif
}

// The first n < 8 elements, zeros after them.
template <class T>
inline Float8 load(const T* from, int64_t n) {
  T whole[8] = {};
  for (int64_t i = 0; i < n; ++i) whole[i] = from[i];
  return load(whole);
}

// One by one: compilers clear a whole array in memory.
template <int kRows, int kColumns>
inline void clear(Float8 (&x)[kRows][kColumns]) {
  for (auto& row : x) {
    for (auto& one : row) one = Float8{};
  }
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

// a < b ? a : b, and a > b ? a : b: b where either is NaN.
inline Float8 lesser(Float8 a, Float8 b) {
#if defined(KVC_AVX2)
  return (Float8)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}
inline Float8 greater(Float8 a, Float8 b) {
#if defined(KVC_AVX2)
  return (Float8)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

inline float sum(Float8 x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// The sums of four, each in the order of `sum`.
typedef float Float4 __attribute__((vector_size(16)));
inline Float4 sums_of_four(const Float8 (&x)[4]) {
  Float4 folded[4], pairs[2];
  for (int i = 0; i < 4; ++i) {
    folded[i] = __builtin_shufflevector(x[i], x[i], 0, 1, 2, 3) +
                __builtin_shufflevector(x[i], x[i], 4, 5, 6, 7);
  }
  for (int i = 0; i < 2; ++i) {
    const Float4 a = folded[2 * i], b = folded[2 * i + 1];
    pairs[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  }
  return __builtin_shufflevector(pairs[0], pairs[1], 0, 2, 4, 6) +
         __builtin_shufflevector(pairs[0], pairs[1], 1, 3, 5, 7);
}

inline void store(float* to, Float8 x) { *reinterpret_cast<Floats8*>(to) = x; }

typedef int32_t Int32x8 __attribute__((vector_size(32)));
typedef int32_t Ints8 __attribute__((vector_size(32), aligned(4), may_alias));
inline Int32x8 load(const int32_t* from) { return *reinterpret_cast<const Ints8*>(from); }
typedef int16_t Int16x8 __attribute__((vector_size(16)));
typedef int16_t Shorts8 __attribute__((vector_size(16), aligned(2), may_alias));
inline void store(int16_t* to, Int16x8 x) { *reinterpret_cast<Shorts8*>(to) = x; }
typedef int8_t Int8x8 __attribute__((vector_size(8)));
typedef int8_t Chars8 __attribute__((vector_size(8), aligned(1), may_alias));
inline void store(int8_t* to, Int8x8 x) { *reinterpret_cast<Chars8*>(to) = x; }
inline void store(int32_t* to, Int32x8 x) { *reinterpret_cast<Ints8*>(to) = x; }

// Turns eight rows of eight into eight columns.
template <class T>
inline void transpose(T (&x)[8]) {
  T y[8], z[8];
  for (int i = 0; i < 8; i += 2) {
    y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const T low = y[i + j], high = y[i + j + 2];
      z[i + 2 * j] = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
      z[i + 2 * j + 1] = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = __builtin_shufflevector(z[i], z[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = __builtin_shufflevector(z[i], z[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
