// Norms and softmax of rows, which are the last axis: a workgroup for each. Tensors: out,
// x, weight, bias. numbers[0] is epsilon.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64) in;
#include "step.glsl"
#include "functions.glsl"

const uint RMS = 0, LAYER = 1, SOFTMAX = 2, LOG_SOFTMAX = 3;
shared float lanes[64];
uint lane;

float add_up(float mine) {
  lanes[lane] = mine;
  barrier();
  for (uint half_of = 32; half_of > 0; half_of >>= 1) {
    if (lane < half_of) lanes[lane] += lanes[lane + half_of];
    barrier();
  }
  float found = lanes[0];
  barrier();
  return found;
}

float greatest(float mine) {
  lanes[lane] = mine;
  barrier();
  for (uint half_of = 32; half_of > 0; half_of >>= 1) {
    if (lane < half_of) {
      float other = lanes[lane + half_of];
      if (is_nan(other) || other > lanes[lane]) lanes[lane] = other;
    }
    barrier();
  }
  float found = lanes[0];
  barrier();
  return found;
}

void main() {
  if (stopped()) return;
  lane = gl_LocalInvocationID.x;
  Tensor result = push.step.tensors[0], x = push.step.tensors[1];
  Tensor weight = push.step.tensors[2], bias = push.step.tensors[3];
  int last = x.rank - 1;
  uint width = uint(x.dims[last]);
  int from = x.strides[last], to = result.strides[last];
  for (uint row = gl_WorkGroupID.x; row < push.count; row += gl_NumWorkGroups.x) {
    int read = offset_of(row, last, x.dims, x.strides);
    int write = offset_of(row, last, result.dims, result.strides);
    float mine = push.op >= SOFTMAX ? -INFINITY : 0.0;
    for (uint i = lane; i < width; i += 64) {
      float value = load_float(x, read + int(i) * from);
      if (push.op == RMS) mine += value * value;
      if (push.op == LAYER) mine += value;
      if (push.op >= SOFTMAX && (value > mine || is_nan(value))) mine = value;
    }
    float shift = 0.0, factor = 1.0;
    if (push.op == RMS) {
      factor = 1.0 / sqrt(add_up(mine) / float(width) + push.step.numbers[0]);
    } else if (push.op == LAYER) {
      shift = add_up(mine) / float(width);
      mine = 0.0;
      for (uint i = lane; i < width; i += 64) {
        float value = load_float(x, read + int(i) * from) - shift;
        mine += value * value;
      }
      factor = 1.0 / sqrt(add_up(mine) / float(width) + push.step.numbers[0]);
    } else {
      shift = greatest(mine);
      mine = 0.0;
      for (uint i = lane; i < width; i += 64) mine += exp_of(load_float(x, read + int(i) * from) - shift);
      factor = add_up(mine);
      if (push.op == LOG_SOFTMAX) factor = log_of(factor);
    }
    for (uint i = lane; i < width; i += 64) {
      float value = load_float(x, read + int(i) * from) - shift;
      if (push.op == SOFTMAX) {
        value = exp_of(value) / factor;
      } else if (push.op == LOG_SOFTMAX) {
        value -= factor;
      } else {
        value *= factor;
        if (weight.at != 0) value *= load_float(weight, int(i) * weight.strides[0]);
        if (bias.at != 0) value += load_float(bias, int(i) * bias.strides[0]);
      }
      store_float(result, write + int(i) * to, value);
    }
    barrier();
  }
}
