// Copies between tensors of any strides.
#pragma once

#include "kernels.h"

namespace kvc {

// Bytes of an element.
int64_t itemsize(DType dtype);

// Writes `from`, broadcast to the shape of `to` and of the same dtype, into `to`.
void copy_into(const Tensor& to, const Tensor& from, int threads);

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
