// Convolutions whose every output reads one channel.
#pragma once

#include "convolution.h"
#include "kernels.h"

namespace kvc {

struct DepthwiseConvolution {
  Tensor out;
  Patches patches;  // of the first image and channel
  const float *w, *bias, *residual;  // bias and residual may be null
  Ending ending;
  int64_t image_stride;  // of the input
  int64_t images, channels;  // of the result
  int64_t multiplier;  // channels of the result for one of the input
};

// Whether `convolve_planes` can make what reads `inputs` channels.
bool is_depthwise(int64_t inputs, const Patches& patches);

bool convolve_planes(const DepthwiseConvolution& c, const Context& context);

}  // namespace kvc
