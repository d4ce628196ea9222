// Kernels of matrix products, float32 and int8.
#include "products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "copies.h"
#include "kernels.h"
#include "pool.h"
#include "processor.h"

namespace kvc {

const ProductKernels& product_kernels() {
#if defined(__x86_64__)
  if (processor() == Processor::kAvx2) return kAvx2Products;
#endif
  return kPortableProducts;
}

namespace {

// Columns that a thread claims at a time: enough work to be worth it, a multiple of the
// tile's four.
int64_t grain_of(int64_t rows, int64_t columns, int64_t depth, int threads) {
  const int64_t work = std::max<int64_t>(1, rows * depth);
  const int64_t least = (65536 / work + 4) / 4 * 4;
  const int64_t share = (columns / (8 * std::max(1, threads)) + 3) / 4 * 4;
  return std::max<int64_t>(4, std::max(least, std::min<int64_t>(share, 256)));
}

void multiply(const FloatProduct& product, int threads) {
  const auto kernel = product_kernels().float32;
  const int64_t grain = grain_of(product.rows, product.columns, product.depth, threads);
  parallel(product.columns, grain, threads,
           [&](int64_t begin, int64_t end, int) { kernel(product, begin, end); });
}

// `tensor` as [rows, width] with rows that lie together, copied to a workspace if it must.
struct Matrix {
  const float* data;
  int64_t stride;
};

bool rows_together(const Tensor& x, int threads, int slot, Matrix* found) {
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
    *found = Matrix{x.as<const float>(), stride};
    return true;
  }
  auto* memory = static_cast<float*>(workspace(x.count() * sizeof(float), slot));
  if (memory == nullptr) return false;
  Tensor to = x;
  to.data = memory;
  for (int64_t axis = x.rank - 1, step = 1; axis >= 0; --axis) {
    to.strides[axis] = step;
    step *= x.dims[axis];
  }
  copy_into(to, x, threads);
  *found = Matrix{memory, width};
  return true;
}

// x [..., k] times weight [n, k], transposed, plus bias [n].
bool linear(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &weight = step.tensors[2];
  const Tensor& bias = step.tensors[3];
  const int64_t depth = weight.dim(1), columns = weight.dim(0);
  if (out.count() == 0) return true;
  Matrix rows, columns_of;
  if (!rows_together(x, context.threads, 0, &rows) ||
      !rows_together(weight, context.threads, 1, &columns_of)) {
    return context.refuse(Fault::kNoMemory, 0);
  }
  multiply({rows.data, rows.stride, columns_of.data, columns_of.stride, bias.as<const float>(),
            out.as<float>(), columns, 1, out.count() / columns, columns, depth},
           context.threads);
  return true;
}

// One of a batch of matrices: [m, k] times [k, n].
bool multiply_matrices(const Tensor& out, Tensor a, Tensor b, const Context& context) {
  Tensor turned = b;
  std::swap(turned.dims[0], turned.dims[1]);
  std::swap(turned.strides[0], turned.strides[1]);
  Matrix rows, columns;
  if (!rows_together(a, context.threads, 0, &rows) ||
      !rows_together(turned, context.threads, 1, &columns)) {
    return context.refuse(Fault::kNoMemory, 0);
  }
  multiply({rows.data, rows.stride, columns.data, columns.stride, nullptr, out.as<float>(),
            out.strides[0], out.strides[1], out.dims[0], out.dims[1], a.dims[1]},
           context.threads);
  return true;
}

// The last two dims of a matrix of a batch, which is broadcast to `out`.
Tensor matrix_at(const Tensor& whole, const Tensor& out, int64_t index) {
  Tensor found = whole;
  int64_t offset = 0;
  for (int axis = out.rank - 3; axis >= 0; --axis) {
    const int64_t place = index % out.dims[axis];
    index /= out.dims[axis];
    const int own = axis - (out.rank - whole.rank);
    if (own >= 0 && whole.dims[own] != 1) offset += place * whole.strides[own];
  }
  found.data = whole.as<float>() + offset;
  found.rank = 2;
  for (int i = 0; i < 2; ++i) {
    found.dims[i] = whole.dims[whole.rank - 2 + i];
    found.strides[i] = whole.strides[whole.rank - 2 + i];
  }
  return found;
}

// A vector as the matrix that it is in a product; `first`: of the left side.
Tensor as_matrix(Tensor x, bool first) {
  if (x.rank != 1) return x;
  x.rank = 2;
  x.dims[first ? 1 : 0] = x.dims[0];
  x.strides[first ? 1 : 0] = x.strides[0];
  x.dims[first ? 0 : 1] = 1;
  x.strides[first ? 0 : 1] = first ? x.dims[1] * x.strides[1] : 1;
  return x;
}

bool matmul(const Step& step, const Context& context) {
  Tensor out = step.tensors[0];
  const Tensor a = as_matrix(step.tensors[1], true), b = as_matrix(step.tensors[2], false);
  if (step.tensors[1].rank == 1) {  // give the result the row that it has not
    const int at = out.rank - (step.tensors[2].rank == 1 ? 0 : 1);
    for (int i = out.rank; i > at; --i) {
      out.dims[i] = out.dims[i - 1];
      out.strides[i] = out.strides[i - 1];
    }
    out.dims[at] = 1;
    out.strides[at] = 1;
    ++out.rank;
  }
  if (step.tensors[2].rank == 1) {
    out.dims[out.rank] = 1;
    out.strides[out.rank] = 1;
    ++out.rank;
  }
  if (out.count() == 0) return true;
  int64_t matrices = 1;
  for (int i = 0; i < out.rank - 2; ++i) matrices *= out.dims[i];
  for (int64_t i = 0; i < matrices; ++i) {
    if (!multiply_matrices(matrix_at(out, out, i), matrix_at(a, out, i), matrix_at(b, out, i),
                           context)) {
      return false;
    }
  }
  return true;
}

// Results: q int8 [..., k], scale float32 [..., 1], zero_point int32 [..., 1]. A row spans
// its own range, which includes zero: that of XNNPACK's qd8.
bool quantize_rows(const Step& step, const Context& context) {
  const Tensor &q = step.tensors[0], &scales = step.tensors[1], &zeros = step.tensors[2];
  Matrix x;
  if (!rows_together(step.tensors[3], context.threads, 0, &x)) {
    return context.refuse(Fault::kNoMemory, 0);
  }
  const int64_t width = q.dim(-1), rows = scales.count();
  parallel(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)), context.threads,
           [&](int64_t begin, int64_t end, int) {
    const auto kernels = product_kernels();
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x.data + row * x.stride;
      int8_t* to = q.as<int8_t>() + row * width;
      float low, high, wrong;
      kernels.range(from, width, &low, &high, &wrong);
      const float spread = high - low;
      const float scale = wrong != wrong ? wrong : (spread == 0 ? 1.0f : 255.0f / spread);
      const float least = low * scale, most = high * scale;
      const float at_low = -128.0f - least, at_high = 127.0f - most;
      float zero = (least - 128.0f) + (most + 127.0f) > 0 ? at_low : at_high;
      zero = std::nearbyint(std::min(std::max(zero, -128.0f), 127.0f));
      scales.as<float>()[row] = scale;
      zeros.as<int32_t>()[row] = zero != zero ? 0 : static_cast<int32_t>(zero);
      kernels.quantize(from, width, scale, zero, to);
    }
  });
  return true;
}

// q - zero of some rows, as int16, zeros after `depth`.
void shift_rows(const Tensor& q, const Tensor& zero, int64_t begin, int64_t end, int64_t depth,
                int64_t stride, int16_t* x) {
  for (int64_t row = begin; row < end; ++row) {
    const int8_t* from = q.as<const int8_t>() + row * depth;
    const auto shift = static_cast<int16_t>(zero.as<const int32_t>()[row]);
    int16_t* to = x + row * stride;
    for (int64_t k = 0; k < depth; ++k) to[k] = static_cast<int16_t>(from[k] - shift);
    std::memset(to + depth, 0, (stride - depth) * sizeof(int16_t));
  }
}

// Rows side by side, see Int8Product; those of a last block that are missing are zeros.
void pair_rows(const int16_t* x, int64_t rows, int64_t block, int64_t stride, int16_t* paired) {
  int16_t* to = paired + block * kTokens * stride;
  const int64_t first = block * kTokens;
  for (int64_t token = 0; token < kTokens; ++token) {
    const int16_t* from = x + (first + token) * stride;
    for (int64_t pair = 0; pair < stride / 2; ++pair) {
      const int64_t place = (pair * kTokens + token) * 2;
      if (first + token < rows) {
        std::memcpy(to + place, from + 2 * pair, 2 * sizeof(int16_t));
      } else {
        std::memset(to + place, 0, 2 * sizeof(int16_t));
      }
    }
  }
}

// Arguments: q, scale, zero_point, weight, weight_scale, bias?
bool linear_qd8(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &q = step.tensors[1], &scale = step.tensors[2];
  const Tensor &zero = step.tensors[3], &weight = step.tensors[4], &bias = step.tensors[6];
  const int64_t depth = weight.dims[1], columns = weight.dims[0], rows = scale.count();
  if (out.count() == 0) return true;
  const int64_t stride = (depth + 15) / 16 * 16, least = kTokens / 2;
  // Half a block is worth the zeros that fill it; few rows are not.
  const int64_t blocks = rows / kTokens + (rows % kTokens >= least ? 1 : 0);
  const int64_t padded = std::max(rows, blocks * kTokens);
  auto* x = static_cast<int16_t*>(workspace((rows + padded) * stride * sizeof(int16_t), 2));
  if (x == nullptr) return context.refuse(Fault::kNoMemory, 0);
  int16_t* paired = x + rows * stride;
  parallel(rows, std::max<int64_t>(1, 32768 / stride), context.threads,
           [&](int64_t begin, int64_t end, int) {
    shift_rows(q, zero, begin, end, depth, stride, x);
  });
  parallel(blocks, 1, context.threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t block = begin; block < end; ++block) pair_rows(x, rows, block, stride, paired);
  });
  const Int8Product product{x,
                            stride,
                            paired,
                            blocks,
                            scale.as<const float>(),
                            weight.as<const int8_t>(),
                            weight.strides[0],
                            step.tensors[5].as<const float>(),
                            bias.as<const float>(),
                            out.as<float>(),
                            columns,
                            rows,
                            columns,
                            depth};
  const auto kernel = product_kernels().int8;
  const int64_t grain = blocks != 0 ? 24 : grain_of(rows, columns, depth, context.threads);
  bool ok = true;  // only ever set to false
  parallel(columns, grain, context.threads, [&](int64_t begin, int64_t end, int) {
    int16_t* scratch = nullptr;
    if (blocks != 0) {
      scratch = static_cast<int16_t*>(workspace(24 * stride * sizeof(int16_t), 3));
      if (scratch == nullptr) ok = false;
      if (scratch == nullptr) return;
    }
    kernel(product, begin, end, scratch);
  });
  return ok || context.refuse(Fault::kNoMemory, 0);
}

}  // namespace

const Entry kProducts[] = {
    {"aten::linear", linear},
    {"aten::matmul", matmul},
    {"aten::mm", matmul},
    {"aten::bmm", matmul},
    {"kvc::quantize_rows", quantize_rows},
    {"kvc::linear_qd8", linear_qd8},
    {nullptr, nullptr},
};

}  // namespace kvc
