#include "products.h"

#if defined(KVC_HAS_VNNI)
// Of its own functions gcc 12 says that they use what has no value (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

// As in products_avx2.cc; tools/dev/emulate.sh compiles this for AVX2 alone.
#if !defined(KVC_EMULATED)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")
#endif
#endif
#define KVC_AVX2 1
#define KVC_AVX512 1
#include "vector_math.h"

namespace kvc {
namespace vnni {
namespace {
#include "simd.h"
#include "results.inc"
#include "integers_vnni.inc"
#include "products_of.inc"
}  // namespace
}  // namespace vnni

const ProductKernels kVnniProducts = vnni::kKernels;

}  // namespace kvc
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
