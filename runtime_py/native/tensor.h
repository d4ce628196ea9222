// Operands of kernels, and loops over their elements.
//
// A tensor is an address, a dtype and strides. Nothing here owns memory: the runtime
// binds every operand to its fixed address before a program runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc {

constexpr int kMaxRank = 8;

// The numbers of kvc.schema.dtypes.
enum class DType : int32_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kUInt8 = 8,
  kBool = 9,
};

// An operand; `data` is null where an optional one is left out. Strides are in elements.
struct Tensor {
  void* data;
  DType dtype;
  int32_t rank;
  int64_t dims[kMaxRank];
  int64_t strides[kMaxRank];

  explicit operator bool() const { return data != nullptr; }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  int64_t count() const {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= dims[i];
    return product;
  }

  // The size or stride of an axis; negative axes count from the last.
  int64_t dim(int axis) const { return dims[axis < 0 ? axis + rank : axis]; }
  int64_t stride(int axis) const { return strides[axis < 0 ? axis + rank : axis]; }

  // Whether the last `axes` dims lie together, as in an array without gaps.
  bool packed(int axes) const {
    if (count() == 0) return true;
    int64_t expected = 1;
    for (int i = rank - 1; i >= rank - axes; --i) {
      if (dims[i] != 1 && strides[i] != expected) return false;
      expected *= dims[i];
    }
    return true;
  }

  bool packed() const { return packed(rank); }
};

// The elements of several tensors side by side, over the shape of the first. Others are
// broadcast to it. Dims that lie together in all of them are merged; at least one is left.
template <int N>
struct Loop {
  int rank = 0;
  int64_t dims[kMaxRank];
  int64_t strides[N][kMaxRank];

  [[gnu::noinline]] explicit Loop(const Tensor* const (&tensors)[N]) {
    const Tensor& first = *tensors[0];
    for (int axis = 0; axis < first.rank; ++axis) {
      if (first.dims[axis] == 1) continue;
      dims[rank] = first.dims[axis];
      for (int i = 0; i < N; ++i) {
        const Tensor& tensor = *tensors[i];
        const int own = axis - (first.rank - tensor.rank);
        const bool repeated = own < 0 || tensor.dims[own] == 1;
        strides[i][rank] = repeated ? 0 : tensor.strides[own];
      }
      if (rank > 0 && merges()) {
        dims[rank - 1] *= dims[rank];
        for (auto& stride : strides) stride[rank - 1] = stride[rank];
      } else {
        ++rank;
      }
    }
    if (rank == 0) {
      rank = 1;
      dims[0] = 1;
      for (auto& stride : strides) stride[0] = 0;
    }
  }

  // How many runs of the innermost dim there are.
  int64_t runs() const {
    int64_t product = 1;
    for (int i = 0; i < rank - 1; ++i) product *= dims[i];
    return product;
  }

  int64_t inner() const { return dims[rank - 1]; }
  int64_t step(int tensor) const { return strides[tensor][rank - 1]; }

  // Where a run begins in each tensor.
  void start(int64_t run, int64_t (&offsets)[N]) const {
    for (auto& offset : offsets) offset = 0;
    for (int axis = rank - 2; axis >= 0; --axis) {
      const int64_t index = run % dims[axis];
      run /= dims[axis];
      for (int i = 0; i < N; ++i) offsets[i] += index * strides[i][axis];
    }
  }

 private:
  bool merges() const {
    for (const auto& stride : strides) {
      if (stride[rank - 1] != stride[rank] * dims[rank]) return false;
    }
    return true;
  }
};

}  // namespace kvc
