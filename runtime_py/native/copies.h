// Copies between tensors of any strides.
#pragma once

#include "kernels.h"
#include "types.h"

namespace kvc {

// Writes `from`, broadcast to the shape of `to` and of the same dtype, into `to`.
void copy_into(const Tensor& to, const Tensor& from, int threads);

// Copies n elements of some bytes; steps are in elements.
void copy_run(int64_t size, char* to, int64_t so, const char* from, int64_t sf, int64_t n);

// A Scalar argument as a tensor without dims, whose element lies in `element`.
Tensor scalar_of(DType dtype, int64_t whole, double number, char (&element)[8]);

// An element of an index, int32 or int64, that has been laid flat.
int64_t index_at(const Tensor& index, int64_t flat);

// A part of a tensor along an axis.
inline Tensor narrow(Tensor tensor, int axis, int64_t start, int64_t count) {
  if (axis < 0) axis += tensor.rank;
  tensor.data = tensor.as<char>() + start * tensor.strides[axis] * itemsize(tensor.dtype);
  tensor.dims[axis] = count;
  return tensor;
}

}  // namespace kvc
