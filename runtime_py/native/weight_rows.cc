// Rows of weights that are int8 in the file, as float32 just before they are multiplied.
#include "weight_rows.h"

#include "products.h"

namespace kvc {
namespace {

constexpr int kRowSlot = 3;  // of workspaces; those before it are of convolutions

}  // namespace

FloatRows float_rows(const WeightRows& weights, int64_t rows, int64_t depth, const Context& context) {
  const auto& [first, scale, row_stride, step] = weights;
  if (scale == nullptr) return {static_cast<const float*>(first), row_stride, step};
  auto* made = static_cast<float*>(context.workspace(rows * depth * sizeof(float), kRowSlot));
  if (made == nullptr) return {nullptr, 0, 0};
  const auto* from = static_cast<const int8_t*>(first);
  if (step == 1) {
    const auto widen = product_kernels().widen_int8;
    for (int64_t i = 0; i < rows; ++i) {
      const int8_t* row = from + i * row_stride;
      widen(row, depth, scale[i], made + i * depth);
      // The rows after these, too short for the processor to see, arrive during the product.
      for (int64_t k = 0; k < depth; k += 64) __builtin_prefetch(row + rows * row_stride + k);
    }
    return {made, depth, 1};
  }
  for (int64_t k = 0; k < depth; ++k) {  // the rows of one k lie nearer to each other
    for (int64_t i = 0; i < rows; ++i) {
      made[i * depth + k] = static_cast<float>(from[k * step + i * row_stride]) * scale[i];
    }
  }
  return {made, depth, 1};
}

}  // namespace kvc
