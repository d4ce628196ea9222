// The weights of a convolution as rows of float32.
#pragma once

#include "kernels.h"

namespace kvc {

// Rows of weights, of row r and k the one at r * row_stride + k * step: float32, or int8 that a
// scale of the row multiplies.
struct WeightRows {
  const void* first;
  const float* scale;  // of each row; null where weights are float32
  int64_t row_stride, step;

  // The same from another row and k on, whose weight lies `elements` after the first.
  WeightRows from(int64_t row, int64_t elements) const {
    if (scale == nullptr) return {static_cast<const float*>(first) + elements, nullptr, row_stride, step};
    return {static_cast<const int8_t*>(first) + elements, scale + row, row_stride, step};
  }
};

struct FloatRows {
  const float* first;  // null where a thread has no memory
  int64_t row_stride, step;
};

// `rows` rows from the first on, of `depth` k: where they lie, or int8 times their scales, in
// memory of the thread until it asks again.
FloatRows float_rows(const WeightRows& weights, int64_t rows, int64_t depth, const Context& context);

}  // namespace kvc
