// Convolutions of whole tensors.
#pragma once

#include "convolution.h"
#include "kernels.h"

namespace kvc {

constexpr int kAxes = 3;

// What a convolution is told about its axes.
struct Settings {
  int64_t stride[kAxes], padding[kAxes], dilation[kAxes];
  int64_t groups;
};

struct Convolution {
  Tensor out, x, w;
  const float* bias;
  const float* residual;  // of the shape of the result, or null
  Ending ending;
  bool turned;  // whether it is a transposed one, with weights [in, out of a group, ...]
  Settings settings;
  const float* scale = nullptr;  // of each output channel, where weights are int8

  int spatial() const { return x.rank - 2; }
  int64_t images() const { return x.dims[0]; }
  int64_t inputs() const { return x.dims[1] / settings.groups; }  // channels of a group
  int64_t outputs() const { return out.dims[1] / settings.groups; }
  int64_t plane() const {  // elements of a channel of the result
    int64_t product = 1;
    for (int i = 2; i < out.rank; ++i) product *= out.dims[i];
    return product;
  }
};

// Makes the result of an ordinary convolution; false after `Context::refuse`.
bool convolve(const Convolution& c, const Context& context);

// A convolution by the operands of a step after its result and input: weights, their scales if
// they are int8, and a bias. Its axes are not told yet; `rest` are the operands that follow.
Convolution read_operands(const Step& step, bool turned, const Tensor** rest);

// Reads a list of numbers for each axis, which has its length in front; returns what follows.
const int64_t* read_list(const int64_t* integers, int64_t* to);

}  // namespace kvc
