#include "products.h"

#if defined(KVC_HAS_NEON_DOT)
#include <arm_neon.h>

#include <cmath>
#include <cstring>
#include <utility>

// As in products_avx2.cc.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=armv8.2-a+dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#define KVC_NEON 1
#define KVC_NEON_DOT 1
#include "vector_math.h"

namespace kvc {
namespace neon_dot {
namespace {
#include "simd.h"
#include "results.inc"
#include "integers_neon.inc"
#include "products_of.inc"
}  // namespace
}  // namespace neon_dot

const ProductKernels kNeonDotProducts = neon_dot::kKernels;

}  // namespace kvc
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
