// Convolutions of float64 and of integers.
#pragma once

#include "tensor.h"

namespace kvc {

struct PlainConvolution {
  Tensor out, x, w, bias;  // without gaps but for `x`
  const int64_t *stride, *padding, *dilation;  // of each axis
  int64_t groups;
  bool transposed;
};

bool convolve_plainly(const PlainConvolution& convolution, int threads);

}  // namespace kvc
