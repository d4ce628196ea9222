// Tensors as matrices, whose rows lie together.
#pragma once

#include <cstdint>

#include "copies.h"
#include "kernels.h"
#include "types.h"

namespace kvc {

// `tensor` as [rows, width] with rows that lie together, copied to a workspace if it must.
struct Matrix {
  const void* data;
  int64_t stride;
};

// Contract of out = a b, operands of a step: matrices, batches of them, which are repeated, or
// vectors.
bool matrices_multiplied(Check& check, int out, int a, int b);

inline bool rows_together(const Tensor& x, const Context& context, int slot, Matrix* found) {
  const int64_t width = x.dim(-1);
  int64_t stride = width;
  bool plain = width == 1 || x.stride(-1) == 1;
  if (x.rank >= 2) {
    // All dims before the last must be one: each stride that of the rows it spans.
    bool first = true;
    int64_t expected = 0;
    for (int axis = x.rank - 2; axis >= 0; --axis) {
      if (x.dims[axis] == 1) continue;
      if (first) {
        stride = x.strides[axis];
      } else if (x.strides[axis] != expected) {
        plain = false;
      }
      first = false;
      expected = x.strides[axis] * x.dims[axis];
    }
  }
  if (plain) {
    *found = Matrix{x.data, stride};
    return true;
  }
  void* memory = context.workspace(x.count() * itemsize(x.dtype), slot);
  if (memory == nullptr) return false;
  Tensor to = x;
  to.data = memory;
  for (int64_t axis = x.rank - 1, step = 1; axis >= 0; --axis) {
    to.strides[axis] = step;
    step *= x.dims[axis];
  }
  copy_into(to, x, context.threads);
  *found = Matrix{memory, width};
  return true;
}

}  // namespace kvc
