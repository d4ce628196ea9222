#include "products.h"

#if defined(KVC_HAS_PORTABLE)
#include <cstring>
#include <utility>

#include "vector_math.h"

namespace kvc {
namespace portable {
namespace {
#include "simd.h"
#include "results.inc"
#include "integers_portable.inc"
#include "products_of.inc"
}  // namespace
}  // namespace portable

const ProductKernels kPortableProducts = portable::kKernels;

}  // namespace kvc
#endif
