#include "products.h"

#if defined(KVC_HAS_AVX2)
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <utility>

// What this file is compiled for; the macros of compilers (__AVX2__) do not follow a
// pragma in C++. The headers of the system come before: an inline function of theirs that
// is compiled for AVX2 might be linked for all other files.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#define KVC_AVX2 1
#include "vector_math.h"

namespace kvc {
namespace avx2 {
namespace {
#include "simd.h"
#include "results.inc"
#include "integers_avx2.inc"
#include "products_of.inc"
}  // namespace
}  // namespace avx2

const ProductKernels kAvx2Products = avx2::kKernels;

}  // namespace kvc
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
