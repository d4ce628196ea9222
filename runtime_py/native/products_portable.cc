#include <cstring>

#include "products.h"
#include "vector_math.h"

namespace kvc {
namespace portable {
namespace {
#include "simd.h"
#include "products_of.inc"
}  // namespace
}  // namespace portable

const ProductKernels kPortableProducts = {
    portable::floats, portable::int8, portable::int4, portable::mix, portable::range, portable::quantize,
    portable::quantize_shifted, portable::pair, portable::exp, portable::sigmoid, portable::silu,
    portable::gelu_tanh, portable::narrow, portable::widen,
};

}  // namespace kvc
