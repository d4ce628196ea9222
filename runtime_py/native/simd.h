// Eight floats or int32 at a time, for the instruction set that the file is compiled for.
//
// Included after `#pragma GCC target`, in a namespace of its own for each instruction set.
typedef float Float4 __attribute__((vector_size(16)));
typedef int16_t Int16x8 __attribute__((vector_size(16)));
typedef uint16_t Words8 __attribute__((vector_size(16)));
typedef int8_t Int8x8 __attribute__((vector_size(8)));
// As they lie in memory.
typedef int16_t Shorts8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef int8_t Chars8 __attribute__((vector_size(8), aligned(1), may_alias));
inline void store(int16_t* to, Int16x8 x) { *reinterpret_cast<Shorts8*>(to) = x; }
inline void store(int8_t* to, Int8x8 x) { *reinterpret_cast<Chars8*>(to) = x; }

#if defined(KVC_AVX2)
#include "eight_wide.inc"
#else
#include "eight_of_two.inc"
#endif

inline void store(int16_t* to, Int32x8 x) { store(to, narrowed(x)); }
inline void store(int8_t* to, Int32x8 x) {
  store(to, __builtin_convertvector(narrowed(x), Int8x8));
}

#if defined(KVC_AVX512)
#include "sixteen_wide.inc"
#else
// As many as the widest registers hold.
typedef Float8 Wide;
constexpr int64_t kWideLanes = 8;
inline Wide wide(float x) { return splat(x); }
inline Wide load_wide(const float* from) { return load(from); }
inline Wide load_wide(const Half* from) { return load(from); }
inline Wide load_wide(const int8_t* from) { return load(from); }
inline Float8 add_in_eight(Float8 sums, Wide x) { return sums + x; }
#endif

// The same for either of the two.
template <class F>
inline F splat_as(float x) {
  if constexpr (sizeof(F) == sizeof(Wide)) {
    return wide(x);
  } else {
    return splat(x);
  }
}
template <class F, class T>
inline F load_as(const T* from) {
  if constexpr (sizeof(F) == sizeof(Wide)) {
    return load_wide(from);
  } else {
    return load(from);
  }
}

// The first n < kWideLanes, zeros after them.
inline Wide load_wide(const float* from, int64_t n) {
  float whole[kWideLanes] = {};
  for (int64_t i = 0; i < n; ++i) whole[i] = from[i];
  return load_wide(whole);
}

inline Float8 load(const BFloat16* from) {
  Words8 read;
  std::memcpy(&read, from, sizeof read);
  return of_bfloat16(read);
}

// The first n < 8, zeros after them.
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

// Low and high half, added.
inline Float4 folded(Float8 x) { return low(x) + high(x); }

inline float sum(Float8 x) {
  const Float4 four = folded(x);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// The sums of four, each in the order of `sum`.
inline Float4 sums_of_four(const Float8 (&x)[4]) {
  Float4 pairs[2];
  for (int i = 0; i < 2; ++i) {
    const Float4 a = folded(x[2 * i]), b = folded(x[2 * i + 1]);
    pairs[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  }
  return __builtin_shufflevector(pairs[0], pairs[1], 0, 2, 4, 6) +
         __builtin_shufflevector(pairs[0], pairs[1], 1, 3, 5, 7);
}

inline Int8x8 even_first(Int8x8 x) {
  return __builtin_shufflevector(x, x, 0, 2, 4, 6, 1, 3, 5, 7);
}

