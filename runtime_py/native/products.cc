// Kernels of matrix products: float32, bfloat16, and int8 with int8 or int4 weights.
#include "products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "copies.h"
#include "kernels.h"
#include "pool.h"
#include "row_sources.h"

namespace kvc {

namespace {

// Columns that a thread claims at a time: enough work to be worth it, a multiple of the
// tile's eight.
int64_t grain_of(int64_t rows, int64_t columns, int64_t depth, int threads) {
  const int64_t work = std::max<int64_t>(1, rows * depth);
  const int64_t least = (65536 / work + 8) / 8 * 8;
  const int64_t share = (columns / (8 * std::max(1, threads)) + 7) / 8 * 8;
  return std::max<int64_t>(8, std::max(least, std::min<int64_t>(share, 256)));
}

void multiply(const FloatProduct& product, int threads) {
  const auto kernel = product_kernels().floats;
  const int64_t grain = grain_of(product.rows, product.columns, product.depth, threads);
  parallel(product.columns, grain, threads,
           [&](int64_t begin, int64_t end, int) { kernel(product, begin, end); });
}

// The same of bfloat16, widened once where there are several rows.
bool multiply_bfloat16(FloatProduct product, const Context& context) {
  const auto& kernels = product_kernels();
  product.floats = Floats::kBFloat16;
  if (product.rows < kWidenedColumns) {
    multiply(product, context.threads);
    return true;
  }
  const int64_t depth = product.depth;
  auto* widened = static_cast<float*>(context.workspace(product.rows * depth * sizeof(float), 2));
  if (widened == nullptr) return context.complete();
  parallel(product.rows, 1 + 16384 / (depth + 1), context.threads,
           [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const BFloat16* from = static_cast<const BFloat16*>(product.x) + row * product.x_stride;
      kernels.widen_bfloat16(from, depth, widened + row * depth);
    }
  });
  product.x = widened;
  product.x_stride = depth;
  product.floats = Floats::kWidenedRows;
  const int64_t grain = grain_of(product.rows, product.columns, depth, context.threads);
  parallel(product.columns, grain, context.threads, [&](int64_t begin, int64_t end, int) {
    FloatProduct own = product;
    const int64_t nbytes = kWidenedColumns * depth * sizeof(float);
    own.scratch = static_cast<float*>(context.workspace(nbytes, 3));
    if (own.scratch != nullptr) kernels.floats(own, begin, end);
  });
  return context.complete();
}

// `tensor` as [rows, width] with rows that lie together, copied to a workspace if it must.
struct Matrix {
  const void* data;
  int64_t stride;
};

bool rows_together(const Tensor& x, const Context& context, int slot, Matrix* found) {
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

// x [..., k] times weight [n, k], transposed, plus bias [n]; all float32 or all bfloat16.
bool linear(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &weight = step.tensors[2];
  const Tensor& bias = step.tensors[3];
  const int64_t depth = weight.dim(1), columns = weight.dim(0);
  if (out.count() == 0) return true;
  Matrix rows, columns_of;
  if (!rows_together(x, context, 0, &rows) || !rows_together(weight, context, 1, &columns_of)) {
    return context.complete();
  }
  const FloatProduct product{rows.data, rows.stride, columns_of.data, columns_of.stride,
                             bias.data, out.data,    columns,         1,
                             out.count() / columns,  columns,         depth};
  if (out.dtype == DType::kBFloat16) return multiply_bfloat16(product, context);
  multiply(product, context.threads);
  return true;
}

// One of a batch of matrices: [m, k] times [k, n].
bool multiply_matrices(const Tensor& out, Tensor a, Tensor b, const Context& context) {
  Tensor turned = b;
  std::swap(turned.dims[0], turned.dims[1]);
  std::swap(turned.strides[0], turned.strides[1]);
  Matrix rows, columns;
  if (!rows_together(a, context, 0, &rows) || !rows_together(turned, context, 1, &columns)) {
    return context.complete();
  }
  multiply({rows.data, rows.stride, columns.data, columns.stride, nullptr, out.data,
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

// How a row of floats becomes int8. It spans its own range, which includes zero: that of
// XNNPACK's qd8.
struct Quantization {
  float scale, zero;
};

Quantization quantization_of(const ProductKernels& kernels, const float* x, int64_t width) {
  float low, high, wrong;
  kernels.range(x, width, &low, &high, &wrong);
  const float spread = high - low;
  const float scale = wrong != wrong ? wrong : (spread == 0 ? 1.0f : 255.0f / spread);
  const float least = low * scale, most = high * scale;
  const float at_low = -128.0f - least, at_high = 127.0f - most;
  const float zero = (least - 128.0f) + (most + 127.0f) > 0 ? at_low : at_high;
  const float whole = std::nearbyint(std::min(std::max(zero, -128.0f), 127.0f));
  return {scale, whole != whole ? 0.0f : whole};
}

// Results: q int8 [..., k], scale float32 [..., 1], zero_point int32 [..., 1].
bool quantize_rows(const Step& step, const Context& context) {
  const Tensor &q = step.tensors[0], &scales = step.tensors[1], &zeros = step.tensors[2];
  Matrix x;
  if (!rows_together(step.tensors[3], context, 0, &x)) return context.complete();
  const int64_t width = q.dim(-1), rows = scales.count();
  parallel(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)), context.threads,
           [&](int64_t begin, int64_t end, int) {
    const auto& kernels = product_kernels();
    for (int64_t row = begin; row < end; ++row) {
      const float* from = static_cast<const float*>(x.data) + row * x.stride;
      const Quantization found = quantization_of(kernels, from, width);
      scales.as<float>()[row] = found.scale;
      zeros.as<int32_t>()[row] = static_cast<int32_t>(found.zero);
      kernels.quantize(from, width, found.scale, found.zero, q.as<int8_t>() + row * width);
    }
  });
  return true;
}

// Lays a row out once more for int4 weights, see Int4Rows.
void lay_out_int4(const int16_t* x, int64_t depth, int16_t zero, int8_t* q, int16_t* eights) {
  for (int64_t first = 0; first < depth; first += kInt4, eights += 2) {
    int32_t sums[2] = {};
    for (int64_t k = first; k < first + kInt4; k += 8, q += 8) {
      for (int64_t i = 0; i < 4; ++i) {
        q[i] = static_cast<int8_t>(x[k + 2 * i] + zero);
        q[i + 4] = static_cast<int8_t>(x[k + 2 * i + 1] + zero);
        sums[i / 2] += x[k + 2 * i] + x[k + 2 * i + 1];
      }
    }
    for (int i = 0; i < 2; ++i) eights[i] = static_cast<int16_t>(-8 * sums[i]);
  }
}

// Lays rows out as products with int8 or int4 weights read them. `fill(row, to)` writes
// q - zero of a row and returns its quantization.
template <class Fill>
bool lay_out(int64_t rows, int64_t depth, bool int4, const Context& context, const Fill& fill,
             Int8Rows* found) {
  const int64_t stride = (depth + 63) / 64 * 64, least = kTokens / 2;
  // Half a block is worth the zeros that fill it; few rows are not.
  const int64_t blocks = rows / kTokens + (rows % kTokens >= least ? 1 : 0);
  const int64_t in_blocks = blocks * kTokens, others = std::max<int64_t>(0, rows - in_blocks);
  const int64_t floats = in_blocks + others + 8, narrow = int4 ? others : 0;
  const auto& kernels = product_kernels();
  const BlockLayout& layout = int4 ? kernels.int4_blocks : kernels.int8_blocks;
  const int64_t size = layout.size(stride);
  auto* memory = static_cast<char*>(context.workspace(
      (blocks * size + others * stride) * sizeof(int16_t) + floats * sizeof(float) +
          narrow * ((2 * (depth / kInt4) + 1) * sizeof(int16_t) + depth),
      2));
  if (memory == nullptr) return context.complete();
  auto* side_by_side = reinterpret_cast<int16_t*>(memory);
  int16_t* in_rows = side_by_side + blocks * size;
  auto* scale = reinterpret_cast<float*>(in_rows + others * stride);
  auto* eights = reinterpret_cast<int16_t*>(scale + floats);
  int16_t* zero = eights + narrow * 2 * (depth / kInt4);
  auto* halves = reinterpret_cast<int8_t*>(zero + narrow);
  parallel((blocks + 1) / 2, 1, context.threads, [&](int64_t begin, int64_t end, int) {
    auto* tokens = static_cast<int16_t*>(context.workspace(2 * kTokens * stride * sizeof(int16_t), 3));
    for (int64_t pair = begin; tokens != nullptr && pair < end; ++pair) {
      const int64_t block = 2 * pair, count = std::min<int64_t>(2, blocks - block);
      int16_t zeros[2 * kTokens];
      for (int64_t i = 0; i < count * kTokens; ++i) {
        const int64_t row = block * kTokens + i, used = row < rows ? depth : 0;
        int16_t* to = tokens + i * stride;
        const Quantization found = row < rows ? fill(row, to) : Quantization{1, 0};
        scale[row] = found.scale;
        zeros[i] = static_cast<int16_t>(found.zero);
        std::memset(to + used, 0, (stride - used) * sizeof(int16_t));
      }
      layout.lay_out(tokens, zeros, count, stride, side_by_side + block * size);
    }
  });
  for (int64_t i = 0; i < others; ++i) {
    int16_t* to = in_rows + i * stride;
    const Quantization row = fill(in_blocks + i, to);
    scale[in_blocks + i] = row.scale;
    std::memset(to + depth, 0, (stride - depth) * sizeof(int16_t));
    if (!int4) continue;
    zero[i] = static_cast<int16_t>(row.zero);
    lay_out_int4(to, depth, zero[i], halves + i * depth, eights + i * 2 * (depth / kInt4));
  }
  *found = Int8Rows{side_by_side, in_rows, scale, rows, depth, stride, blocks, {halves, zero, eights}};
  return context.complete();
}

// The product of rows with the columns from `begin` to `end` of a weight. Operands: weight,
// weight_scale, bias?
void multiply_columns(const Int8Rows& x, const Tensor& out, const Tensor* operands, int64_t begin,
                      int64_t end, int16_t* scratch) {
  const Tensor &weight = operands[0], &scale = operands[1];
  const auto* bias = operands[2].as<const float>();
  auto* to = out.as<float>();
  const int64_t columns = out.dim(-1);
  if (weight.dtype == DType::kInt8) {
    product_kernels().int8(x, {weight.as<const int8_t>(), weight.strides[0],
                               scale.as<const float>(), bias, to, columns},
                           begin, end, scratch);
  } else {
    product_kernels().int4(x, {weight.as<const uint8_t>(), weight.strides[0],
                               scale.as<const BFloat16>(), scale.strides[0],
                               x.depth / scale.dims[1], bias, to, columns},
                           begin, end, scratch);
  }
}

// The products of rows with `count` weights; threads share the columns of all.
bool multiply(const Int8Rows& x, int64_t count, const Tensor* outs, const Tensor* operands,
              const Context& context) {
  // Of one row, what 32 KiB of weights give: enough to be worth it, and never long to wait for.
  const int64_t share = 32768 / (x.depth * std::max<int64_t>(1, x.rows));
  const auto& kernels = product_kernels();
  const int64_t grain = x.blocks != 0 ? kernels.columns : share / 8 * 8 + 8;
  const auto pieces_of = [&](int64_t i) { return (outs[i].dim(-1) + grain - 1) / grain; };
  int64_t pieces = 0;
  for (int64_t i = 0; i < count; ++i) pieces += pieces_of(i);
  parallel(pieces, 1, context.threads, [&](int64_t begin, int64_t end, int) {
    const size_t nbytes = x.blocks != 0 ? kernels.scratch_size(x.stride) * sizeof(int16_t) : 1;
    auto* scratch = static_cast<int16_t*>(context.workspace(nbytes, 3));
    if (scratch == nullptr) return;
    for (int64_t piece = begin; piece < end; ++piece) {
      int64_t i = 0, own = piece;
      for (; own >= pieces_of(i); ++i) own -= pieces_of(i);
      const int64_t end = std::min((own + 1) * grain, outs[i].dim(-1));
      multiply_columns(x, outs[i], operands + 3 * i, own * grain, end, scratch);
    }
  });
  return context.complete();
}

// kvc::linear_qd8 and kvc::linear_qb4. Arguments: q, scale, zero_point, weight,
// weight_scale, bias?
bool quantized_linear(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &q = step.tensors[1], &scale = step.tensors[2];
  const Tensor &zero = step.tensors[3], &weight = step.tensors[4];
  if (out.count() == 0) return true;
  const int64_t depth = q.dim(-1);
  Int8Rows x;
  const auto fill = [&](int64_t row, int16_t* to) {
    const int8_t* from = q.as<const int8_t>() + row * depth;
    const int32_t shift = std::clamp(zero.as<const int32_t>()[row], -128, 127);
    for (int64_t k = 0; k < depth; ++k) to[k] = static_cast<int16_t>(from[k] - shift);
    return Quantization{scale.as<const float>()[row], static_cast<float>(shift)};
  };
  return lay_out(scale.count(), depth, weight.dtype != DType::kInt8, context, fill, &x) &&
         multiply(x, 1, &out, &weight, context);
}

// kvc::quantize_rows and the products that follow it, together; their weights are all int8,
// or all int4. Tensors: the results of all, x, what a source reads beside it, then weight,
// weight_scale and bias? of each. Integers: the source, and the activation of kvc::glu; a
// number: eps of aten::rms_norm. A thread makes a row when it quantizes it, while it is near.
bool linears_of_rows(const Step& step, const Context& context) {
  const auto kind = static_cast<RowSource::Kind>(step.integers[0]);
  const int64_t count = step.tensor_count / 4, depth = step.tensors[count].dim(-1);
  const Tensor *outs = step.tensors, &x = outs[count], &other = outs[count + 1];
  const Tensor* operands = &x + (kind == RowSource::kNone ? 1 : 2);
  if (x.count() == 0) return true;
  Matrix read, ups{};
  if (!rows_together(x, context, 0, &read)) return context.complete();
  if (kind == RowSource::kGlu && !rows_together(other, context, 1, &ups)) return context.complete();
  RowSource source{kind, x.count() / depth, depth, static_cast<const float*>(read.data), read.stride,
                   static_cast<const float*>(ups.data), ups.stride, step.integers[1], nullptr, 0};
  if (kind == RowSource::kNorm) {
    source.weight = other.as<const float>();
    source.eps = norm_eps(step.numbers[0]);
  }
  if (source.uneven(context.threads)) {
    auto* made = static_cast<float*>(context.workspace(source.rows * depth * sizeof(float), 4));
    if (made == nullptr) return context.complete();
    source.make_all(context.threads, made);
    source.kind = RowSource::kNone, source.x = made, source.stride = depth;
  }
  const auto& kernels = product_kernels();
  const auto fill = [&](int64_t row, int16_t* to) {
    const float* from = source.x + row * source.stride;
    if (source.kind != RowSource::kNone) {
      auto* made = static_cast<float*>(context.workspace(depth * sizeof(float), 4));
      if (made == nullptr) return Quantization{1, 0};
      source.make(row, 0, depth, made);
      from = made;
    }
    const Quantization found = quantization_of(kernels, from, depth);
    kernels.quantize_shifted(from, depth, found.scale, found.zero, to);
    return found;
  };
  Int8Rows laid_out;
  return lay_out(source.rows, depth, operands[0].dtype != DType::kInt8, context, fill, &laid_out) &&
         multiply(laid_out, count, outs, operands, context);
}

}  // namespace

const Entry kProducts[] = {
    {"aten::linear", linear},
    {"aten::matmul", matmul},
    {"aten::mm", matmul},
    {"aten::bmm", matmul},
    {"kvc::quantize_rows", quantize_rows},
    {"kvc::linear_qd8", quantized_linear},
    {"kvc::linear_qb4", quantized_linear},
    {"linears_of_rows", linears_of_rows},
    {nullptr, nullptr},
};

}  // namespace kvc
