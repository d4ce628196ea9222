#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "products.h"

// What this file is compiled for; the macros of compilers (__AVX2__) do not follow a
// pragma in C++. The headers of the system come before: an inline function of theirs that
// is compiled for AVX2 might be linked for all other files.
#pragma GCC target("avx2,fma,f16c")
#define KVC_AVX2 1
#include "vector_math.h"

namespace kvc {
namespace avx2 {
namespace {
#include "simd.h"
#include "products_of.inc"
}  // namespace
}  // namespace avx2

const ProductKernels kAvx2Products = {
    avx2::floats, avx2::int8, avx2::int4, avx2::mix, avx2::range, avx2::quantize,
    avx2::quantize_shifted, avx2::pair, avx2::exp, avx2::sigmoid, avx2::silu,
    avx2::gelu_tanh, avx2::narrow, avx2::widen,
};

}  // namespace kvc
#endif
