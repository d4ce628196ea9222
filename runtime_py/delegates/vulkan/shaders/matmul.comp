// out[b, m, n] = alpha * sum over k of x[b, m, k] * y[b, k, n] + beta * more[b, m, n]. Any
// strides, batches as one axis of offsets. A workgroup takes a tile of 16 rows and columns;
// sums are taken in the order of k. Tensors: out, x, y, more. numbers: alpha, beta.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 16, local_size_y = 16) in;
#include "step.glsl"

const int SIDE = 16;
shared float rows[SIDE][SIDE + 1], columns[SIDE][SIDE + 1];

void main() {
  if (stopped()) return;
  Tensor result = push.step.tensors[0], x = push.step.tensors[1];
  Tensor y = push.step.tensors[2], more = push.step.tensors[3];
  int batch = result.rank - 2;
  int m = result.dims[batch], n = result.dims[batch + 1], depth = x.dims[batch + 1];
  uint across = uint((n + SIDE - 1) / SIDE), down = uint((m + SIDE - 1) / SIDE);
  int i = int(gl_LocalInvocationID.y), j = int(gl_LocalInvocationID.x);
  for (uint tile = gl_WorkGroupID.x; tile < push.count; tile += gl_NumWorkGroups.x) {
    uint matrix = tile / (across * down);
    int row = int(tile / across % down) * SIDE + i, column = int(tile % across) * SIDE + j;
    int from_x = offset_of(matrix, batch, result.dims, x.strides);
    int from_y = offset_of(matrix, batch, result.dims, y.strides);
    float sum = 0.0;
    for (int first = 0; first < depth; first += SIDE) {
      int k = first + j;
      rows[i][j] = row < m && k < depth ? load_float(x, from_x + row * x.strides[batch] + k * x.strides[batch + 1]) : 0.0;
      // Neighbours read what lies together: along k where that is dense, else along n.
      bool along = y.strides[batch] == 1;
      int at_k = first + (along ? j : i);
      int at_n = int(tile % across) * SIDE + (along ? i : j);
      float value = at_n < n && at_k < depth ? load_float(y, from_y + at_k * y.strides[batch] + at_n * y.strides[batch + 1]) : 0.0;
      if (along) columns[j][i] = value;
      else columns[i][j] = value;
      barrier();
      for (int l = 0; l < SIDE; ++l) sum += rows[i][l] * columns[l][j];
      barrier();
    }
    if (row < m && column < n) {
      sum *= push.step.numbers[0];
      if (more.at != 0 && push.step.numbers[1] != 0.0) {
        int at = offset_of(matrix, batch, result.dims, more.strides) + row * more.strides[batch] + column * more.strides[batch + 1];
        sum += push.step.numbers[1] * load_float(more, at);
      }
      store_float(result, offset_of(matrix, batch, result.dims, result.strides) + row * result.strides[batch] + column * result.strides[batch + 1], sum);
    }
  }
}
