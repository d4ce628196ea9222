// Lanes run along the channels: columns are packed one after the other, and each output is the
// product of one and a row of weights.
#include "last_columns.h"

#include <algorithm>

#include "products.h"
#include "weight_rows.h"

namespace kvc {
namespace {

constexpr int64_t kLanes = 16;  // of the widest registers
constexpr int64_t kMostLast = 4;
constexpr int kLastSlot = 1;  // of workspaces
constexpr int64_t kWidenedRows = 16;  // that are made of int8 at a time

void pack_columns(const float* x, int64_t channel_stride, int64_t depth, int64_t stride,
                  int64_t count, float* to) {
  for (int64_t k = 0; k < depth; ++k, x += channel_stride) {
    for (int64_t j = 0; j < count; ++j) to[j * depth + k] = x[j * stride];
  }
}

}  // namespace

int64_t last_columns(const Convolution& c, const WindowAxis (&axes)[kAxes]) {
  const auto& [outer, middle, inner] = axes;
  const bool one_line = outer.out * middle.out == 1 && outer.first == 0 && middle.first == 0;
  const bool single = outer.taps * middle.taps * inner.taps == 1;
  if (!one_line || !single || inner.first != 0 || inner.step != 1 || inner.in != inner.out) return 0;
  const int64_t last = inner.out % kLanes;
  return inner.out > kLanes && last <= kMostLast && c.inputs() > 0 ? last : 0;
}

bool multiply_last(const Convolution& c, int64_t image, int64_t group, int64_t begin, int64_t end,
                   int64_t count, int64_t stride, const Context& context) {
  const auto& kernels = product_kernels();
  const int64_t depth = c.inputs(), row = group * c.outputs() + begin, rows = end - begin;
  const int64_t plane = c.plane(), first = plane - count;
  const size_t nbytes = (depth + 2 * rows) * count * sizeof(float);
  auto* packed = static_cast<float*>(context.workspace(nbytes, kLastSlot));
  if (packed == nullptr) return false;
  float *sums = packed + depth * count, *residual = sums + rows * count;
  const float* x = c.x.as<const float>() + image * c.x.strides[0] + group * depth * c.x.strides[1];
  pack_columns(x + first * stride, c.x.strides[1], depth, stride, count, packed);
  const float* bias = c.bias != nullptr ? c.bias + row : nullptr;
  const WeightRows weights{c.w.data, c.scale, depth, 1};
  const int64_t together = c.scale == nullptr ? rows : kWidenedRows;
  for (int64_t i = 0; i < rows; i += together) {
    const int64_t some = std::min(together, rows - i);
    const FloatRows w = float_rows(weights.from(row + i, (row + i) * depth), some, depth, context);
    if (w.first == nullptr) return false;
    kernels.floats({packed, depth, w.first, depth, bias != nullptr ? bias + i : nullptr,
                    sums + i * count, 1, count, count, some, depth},
                   0, some);
  }
  const int64_t at = (image * c.out.dims[1] + row) * plane + first;
  for (int64_t i = 0; c.residual != nullptr && i < rows * count; ++i) {
    residual[i] = c.residual[at + i / count * plane + i % count];
  }
  kernels.convolution.finish(c.ending, c.residual != nullptr ? residual : nullptr, rows * count, sums);
  float* out = c.out.as<float>() + at;
  for (int64_t i = 0; i < rows * count; ++i) out[i / count * plane + i % count] = sums[i];
  return true;
}

}  // namespace kvc
