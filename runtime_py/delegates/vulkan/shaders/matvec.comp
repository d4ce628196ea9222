// As matmul.comp, for few rows and columns of y that lie dense along k: a workgroup of 32
// takes a column and up to 8 rows, and reads the column once. Each invocation adds up every
// 32nd product, then these sums are added in a fixed order.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 32) in;
#include "step.glsl"

const int MOST = 8;
shared float lanes[MOST][32];

void main() {
  if (stopped()) return;
  Tensor result = push.step.tensors[0], x = push.step.tensors[1];
  Tensor y = push.step.tensors[2], more = push.step.tensors[3];
  int m = result.dims[0], n = result.dims[1], depth = x.dims[1];
  int lane = int(gl_LocalInvocationID.x);
  int groups = (m + MOST - 1) / MOST;
  for (uint item = gl_WorkGroupID.x; item < push.count; item += gl_NumWorkGroups.x) {
    int column = int(item) / groups, first = int(item) % groups * MOST;
    int count = min(MOST, m - first);
    float sums[MOST];
    for (int i = 0; i < MOST; ++i) sums[i] = 0.0;
    for (int k = lane; k < depth; k += 32) {
      float weight = load_float(y, column * y.strides[1] + k * y.strides[0]);
      for (int i = 0; i < count; ++i) {
        sums[i] += weight * load_float(x, (first + i) * x.strides[0] + k * x.strides[1]);
      }
    }
    for (int i = 0; i < count; ++i) lanes[i][lane] = sums[i];
    barrier();
    for (int half_of = 16; half_of > 0; half_of >>= 1) {
      if (lane < half_of) {
        for (int i = 0; i < count; ++i) lanes[i][lane] += lanes[i][lane + half_of];
      }
      barrier();
    }
    if (lane < count) {
      int row = first + lane;
      float sum = lanes[lane][0] * push.step.numbers[0];
      if (more.at != 0 && push.step.numbers[1] != 0.0) {
        sum += push.step.numbers[1] * load_float(more, row * more.strides[0] + column * more.strides[1]);
      }
      store_float(result, row * result.strides[0] + column * result.strides[1], sum);
    }
    barrier();
  }
}
