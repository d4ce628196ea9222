#include "products.h"

#if defined(KVC_HAS_NEON)
#include <arm_neon.h>

#include <cmath>
#include <cstring>
#include <utility>

#define KVC_NEON 1
#include "vector_math.h"

namespace kvc {
namespace neon {
namespace {
#include "simd.h"
#include "results.inc"
#include "integers_neon.inc"
#include "products_of.inc"
}  // namespace
}  // namespace neon

const ProductKernels kNeonProducts = neon::kKernels;

}  // namespace kvc
#endif
