// Kernels of products of rows that are quantized at run time, with int8 or int4 weights.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "family_contracts.h"
#include "kernels.h"
#include "matrices.h"
#include "pool.h"
#include "products.h"
#include "row_sources.h"

namespace kvc {

namespace {

// How a row of floats becomes int8 with one zero. It spans its own range, which includes zero:
// that of XNNPACK's qd8.
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

// Rows of a product's operand, how they lie.
RowShape shape_of(int64_t depth, int64_t parts) { return {depth, (depth + 63) / 64 * 64, parts}; }

// The parts of k that have scales of their own in a weight, whose scales are [.., parts].
int64_t parts_of(const Tensor& weight, const Tensor& scale) {
  return weight.dtype == DType::kInt8 && scale.rank == 2 ? scale.dims[1] : 1;
}

// Rows that a thread quantizes before they are laid out.
class RowBuffer {
 public:
  // `memory`: as much as `nbytes` says.
  RowBuffer(void* memory, int64_t rows, const RowShape& shape)
      : shape_(shape), steps_(static_cast<float*>(memory)) {
    const int64_t blocks = shape.blocks_of_row();
    all_.zero = reinterpret_cast<int16_t*>(steps_ + 3 * blocks + 24);
    all_.factor = all_.zero + rows * blocks;
    all_.q = reinterpret_cast<int8_t*>(all_.factor + rows * blocks);
  }

  static int64_t nbytes(int64_t rows, const RowShape& shape) {
    const int64_t blocks = shape.blocks_of_row();
    return (3 * blocks + 24) * sizeof(float) +
           rows * (2 * blocks * sizeof(int16_t) + shape.stride);
  }

  const BlockRows& all() const { return all_; }
  float* steps() const { return steps_; }

  BlockRows row(int64_t i) const {
    const int64_t blocks = shape_.blocks_of_row();
    return {all_.q + i * shape_.stride, all_.zero + i * blocks, all_.factor + i * blocks};
  }

  // Puts zeros where a row has nothing; `depth`: its own, or 0.
  void clear_after(int64_t i, int64_t depth) const {
    const BlockRows to = row(i);
    const int64_t used = (depth + kBlock - 1) / kBlock, unused = shape_.blocks_of_row() - used;
    std::memset(to.q + depth, 0, shape_.stride - depth);
    std::memset(to.zero + used, 0, unused * sizeof(int16_t));
    std::memset(to.factor + used, 0, unused * sizeof(int16_t));
  }

 private:
  RowShape shape_;
  float* steps_;
  BlockRows all_;
};

// Gives all blocks of a row the same zero, and the factor 1.
void fill_blocks(const BlockRows& to, int64_t depth, int16_t zero) {
  const int64_t blocks = (depth + kBlock - 1) / kBlock;
  std::fill_n(to.zero, blocks, zero);
  std::fill_n(to.factor, blocks, int16_t{1});
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

// Results: q int8 [..., k], scale float32 [..., 1], zero_point and factor int8 [..., n].
bool quantize_blocks(const Step& step, const Context& context) {
  const Tensor &q = step.tensors[0], &scales = step.tensors[1];
  const int64_t width = q.dim(-1), rows = scales.count(), n = step.tensors[2].dim(-1);
  const RowShape shape = shape_of(width, 1);
  Matrix x;
  if (!rows_together(step.tensors[4], context, 0, &x)) return context.complete();
  parallel(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)), context.threads,
           [&](int64_t begin, int64_t end, int) {
    void* memory = context.workspace(RowBuffer::nbytes(1, shape), 3);
    if (memory == nullptr) return;
    const RowBuffer buffer(memory, 1, shape);
    const BlockRows made = buffer.row(0);
    for (int64_t row = begin; row < end; ++row) {
      const float* from = static_cast<const float*>(x.data) + row * x.stride;
      scales.as<float>()[row] = product_kernels().quantize_blocks(
          from, width, buffer.steps(), q.as<int8_t>() + row * width, made.zero, made.factor);
      std::copy_n(made.zero, n, step.tensors[2].as<int8_t>() + row * n);
      std::copy_n(made.factor, n, step.tensors[3].as<int8_t>() + row * n);
    }
  });
  return context.complete();
}

// Lays a row out once more for int4 weights, see Int4Rows.
void lay_out_int4(const BlockRows& row, int64_t depth, int8_t* q, int16_t* eights) {
  for (int64_t first = 0; first < depth; first += kInt4, eights += 2) {
    int32_t sums[2] = {};
    for (int64_t k = first; k < first + kInt4; k += 8, q += 8) {
      for (int64_t i = 0; i < 4; ++i) {
        q[i] = row.q[k + 2 * i];
        q[i + 4] = row.q[k + 2 * i + 1];
        sums[i / 2] += q[i] + q[i + 4];
      }
    }
    const int32_t zeros = kInt4 / 2 * row.zero[first / kInt4];
    for (int i = 0; i < 2; ++i) eights[i] = static_cast<int16_t>(-8 * (sums[i] - zeros));
  }
}

// Of each kInt4 of a row the sum of (q - zero) * factor, a whole float; `stride` apart.
void sum_blocks(const BlockRows& row, int64_t depth, int64_t stride, float* to) {
  for (int64_t b = 0; b < depth / kInt4; ++b) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kInt4; ++i) sum += row.q[b * kInt4 + i];
    to[b * stride] = static_cast<float>((sum - kInt4 * row.zero[b]) * row.factor[b]);
  }
}

// What weights rows are laid out for.
enum class Weights { kInt8, kInt4, kInt4WithMinimums };

// The weights of `count` products, four operands each; all int8, or all int4.
Weights weights_of(int64_t count, const Tensor* operands) {
  if (operands[0].dtype == DType::kInt8) return Weights::kInt8;
  for (int64_t i = 0; i < count; ++i) {
    if (operands[4 * i + 3]) return Weights::kInt4WithMinimums;
  }
  return Weights::kInt4;
}

// Lays rows out as products with some weights read them. `fill(row, buffer, i)` writes a row as
// the i-th of a buffer and returns its scale.
template <class Fill>
bool lay_out(int64_t rows, const RowShape& shape, Weights weights, const Context& context,
             const Fill& fill, Int8Rows* found) {
  const bool int4 = weights != Weights::kInt8, summed = weights == Weights::kInt4WithMinimums;
  const int64_t stride = shape.stride, depth = shape.depth, least = kTokens / 2;
  // Half a block is worth the zeros that fill it; few rows are not.
  const int64_t blocks = rows / kTokens + (rows % kTokens >= least ? 1 : 0);
  const int64_t in_blocks = blocks * kTokens, others = std::max<int64_t>(0, rows - in_blocks);
  const int64_t narrow = int4 ? others : 0, of_row = depth / kInt4;
  const int64_t kept = int4 ? 0 : others, steps = shape.blocks_of_row();
  const int64_t scales = in_blocks + others + 8;
  const int64_t floats = scales + (summed ? (in_blocks + others) * of_row : 0);
  const auto& kernels = product_kernels();
  const BlockLayout& layout = int4 ? kernels.int4_blocks : kernels.int8_blocks;
  const int64_t size = layout.size(shape);
  auto* memory = static_cast<char*>(context.workspace(
      (blocks * size + others * stride) * sizeof(int16_t) + floats * sizeof(float) +
          narrow * (4 * of_row * sizeof(int16_t) + depth) +
          kept * (2 * steps * sizeof(int16_t) + stride),
      2));
  if (memory == nullptr) return context.complete();
  auto* side_by_side = reinterpret_cast<int16_t*>(memory);
  int16_t* in_rows = side_by_side + blocks * size;
  auto* scale = reinterpret_cast<float*>(in_rows + others * stride);
  float *sums_of_tokens = scale + scales, *sums = sums_of_tokens + in_blocks * of_row;
  auto* eights = reinterpret_cast<int16_t*>(scale + floats);
  int16_t *zero = eights + narrow * 2 * of_row, *factor = zero + narrow * of_row;
  auto* halves = reinterpret_cast<int8_t*>(factor + narrow * of_row);
  auto* kept_zero = reinterpret_cast<int16_t*>(scale + floats);  // no other is there for int8
  int16_t* kept_factor = kept_zero + kept * steps;
  const BlockRows as_made = {reinterpret_cast<int8_t*>(kept_factor + kept * steps), kept_zero,
                             kept_factor};
  parallel((blocks + 1) / 2, 1, context.threads, [&](int64_t begin, int64_t end, int) {
    void* own = context.workspace(RowBuffer::nbytes(2 * kTokens, shape), 3);
    const RowBuffer buffer(own, 2 * kTokens, shape);
    for (int64_t pair = begin; own != nullptr && pair < end; ++pair) {
      const int64_t block = 2 * pair, count = std::min<int64_t>(2, blocks - block);
      for (int64_t i = 0; i < count * kTokens; ++i) {
        const int64_t row = block * kTokens + i;
        scale[row] = row < rows ? fill(row, buffer, i) : 1;
        buffer.clear_after(i, row < rows ? depth : 0);
        float* own = sums_of_tokens + row / kTokens * of_row * kTokens + row % kTokens;
        if (summed) sum_blocks(buffer.row(i), depth, kTokens, own);
      }
      layout.lay_out(buffer.all(), count, shape, side_by_side + block * size);
    }
  });
  void* own = context.workspace(RowBuffer::nbytes(1, shape), 3);
  if (own == nullptr) return context.complete();
  const RowBuffer buffer(own, 1, shape);
  for (int64_t i = 0; i < others; ++i) {
    const BlockRows row = buffer.row(0);
    scale[in_blocks + i] = fill(in_blocks + i, buffer, 0);
    buffer.clear_after(0, depth);
    kernels.expand(row, stride, in_rows + i * stride);
    if (summed) sum_blocks(row, depth, 1, sums + i * of_row);
    if (!int4) {
      std::copy_n(row.q, stride, as_made.q + i * stride);
      std::copy_n(row.zero, steps, as_made.zero + i * steps);
      std::copy_n(row.factor, steps, as_made.factor + i * steps);
      continue;
    }
    lay_out_int4(row, depth, halves + i * depth, eights + i * 2 * of_row);
    std::copy_n(row.zero, of_row, zero + i * of_row);
    std::copy_n(row.factor, of_row, factor + i * of_row);
  }
  *found = Int8Rows{shape, side_by_side, in_rows, as_made, scale, rows, blocks,
                    {halves, zero, factor, eights, sums, sums_of_tokens}};
  return context.complete();
}

// The product of rows with the columns from `begin` to `end` of a weight. Operands: weight,
// weight_scale, bias?, weight_minimum?
void multiply_columns(const Int8Rows& x, const Tensor& out, const Tensor* operands, int64_t begin,
                      int64_t end, int16_t* scratch) {
  const Tensor &weight = operands[0], &scale = operands[1], &minimum = operands[3];
  const auto* bias = operands[2].as<const float>();
  auto* to = out.as<float>();
  const int64_t columns = out.dim(-1);
  if (weight.dtype == DType::kInt8) {
    product_kernels().int8(x, {weight.as<const int8_t>(), weight.strides[0],
                               scale.as<const float>(), scale.rank == 1, bias, to, columns},
                           begin, end, scratch);
  } else {
    product_kernels().int4(x, {weight.as<const uint8_t>(), weight.strides[0],
                               scale.data, minimum.data, scale.dtype, minimum.dtype,
                               scale.strides[0], x.depth / scale.dims[1], bias, to, columns},
                           begin, end, scratch);
  }
}

// What multiply_columns needs of scratch.
size_t scratch_nbytes(const Int8Rows& x, bool int4) {
  if (x.blocks == 0) return 1;
  const auto& kernels = product_kernels();
  const size_t scales = int4 ? int4_scales_size(x, kernels.columns) * sizeof(float) : 0;
  return scales + kernels.scratch_size(x) * sizeof(int16_t);
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
    const size_t nbytes = scratch_nbytes(x, operands[0].dtype != DType::kInt8);
    auto* scratch = static_cast<int16_t*>(context.workspace(nbytes, 3));
    if (scratch == nullptr) return;
    for (int64_t piece = begin; piece < end; ++piece) {
      int64_t i = 0, own = piece;
      for (; own >= pieces_of(i); ++i) own -= pieces_of(i);
      const int64_t end = std::min((own + 1) * grain, outs[i].dim(-1));
      multiply_columns(x, outs[i], operands + 4 * i, own * grain, end, scratch);
    }
  });
  return context.complete();
}

// kvc::linear_qd8 and kvc::linear_qb4; with a zero and a factor for each block, kvc::linear_q8
// and kvc::linear_q4. Arguments: q, scale, zero_point, factor if there are blocks, weight,
// weight_scale, bias?, and weight_minimum? of kvc::linear_q4.
template <bool kInBlocks>
bool quantized_linear(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &q = step.tensors[1], &scale = step.tensors[2];
  const Tensor &zero = step.tensors[3], *given = step.tensors + (kInBlocks ? 5 : 4);
  const bool may_have_minimums = kInBlocks && given[0].dtype != DType::kInt8;
  const Tensor operands[] = {given[0], given[1], given[2], may_have_minimums ? given[3] : Tensor{}};
  if (out.count() == 0) return true;
  const int64_t depth = q.dim(-1), blocks = (depth + kBlock - 1) / kBlock;
  const RowShape shape = shape_of(depth, parts_of(operands[0], operands[1]));
  Int8Rows x;
  const auto fill = [&](int64_t row, const RowBuffer& buffer, int64_t i) {
    const BlockRows to = buffer.row(i);
    std::memcpy(to.q, q.as<const int8_t>() + row * depth, depth);
    if constexpr (kInBlocks) {
      std::copy_n(zero.as<const int8_t>() + row * blocks, blocks, to.zero);
      const int8_t* factors = step.tensors[4].as<const int8_t>() + row * blocks;
      for (int64_t b = 0; b < blocks; ++b) to.factor[b] = std::clamp<int16_t>(factors[b], 1, kMostFactor);
    } else {
      const int32_t shift = std::clamp(zero.as<const int32_t>()[row], -128, 127);
      fill_blocks(to, depth, static_cast<int16_t>(shift));
    }
    return scale.as<const float>()[row];
  };
  return lay_out(scale.count(), shape, weights_of(1, operands), context, fill, &x) &&
         multiply(x, 1, &out, operands, context);
}

// Rows that are quantized, and the products that follow, together; their weights are all int8,
// in as many parts, or all int4. Tensors: the results of all, x, what a source reads beside it,
// then weight, weight_scale, bias? and weight_minimum? of each. Integers: the source, the activation of kvc::glu,
// and whether rows are quantized as by kvc::quantize_blocks, else by kvc::quantize_rows; a
// number: eps of aten::rms_norm. A thread makes a row when it quantizes it, while it is near.
bool linears_of_rows(const Step& step, const Context& context) {
  const auto kind = static_cast<RowSource::Kind>(step.integers[0]);
  const int64_t count = step.tensor_count / 5, depth = step.tensors[count].dim(-1);
  const bool in_blocks = step.integers[2] != 0;
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
  const auto fill = [&](int64_t row, const RowBuffer& buffer, int64_t i) {
    const float* from = source.x + row * source.stride;
    if (source.kind != RowSource::kNone) {
      auto* made = static_cast<float*>(context.workspace(depth * sizeof(float), 4));
      if (made == nullptr) return 1.0f;
      source.make(row, 0, depth, made);
      from = made;
    }
    const BlockRows to = buffer.row(i);
    if (in_blocks) return kernels.quantize_blocks(from, depth, buffer.steps(), to.q, to.zero, to.factor);
    const Quantization found = quantization_of(kernels, from, depth);
    kernels.quantize(from, depth, found.scale, found.zero, to.q);
    fill_blocks(to, depth, static_cast<int16_t>(found.zero));
    return found.scale;
  };
  const RowShape shape = shape_of(depth, parts_of(operands[0], operands[1]));
  Int8Rows laid_out;
  return lay_out(source.rows, shape, weights_of(count, operands), context, fill, &laid_out) &&
         multiply(laid_out, count, outs, operands, context);
}

}  // namespace

const Entry kQuantizedProducts[] = {
    {"kvc::quantize_rows", quantize_rows, rows_quantized},
    {"kvc::quantize_blocks", quantize_blocks, blocks_quantized},
    {"kvc::linear_qd8", quantized_linear<false>, quantized_rows_multiplied},
    {"kvc::linear_qb4", quantized_linear<false>, quantized_rows_multiplied},
    {"kvc::linear_q8", quantized_linear<true>, quantized_blocks_multiplied},
    {"kvc::linear_q4", quantized_linear<true>, quantized_blocks_multiplied},
    {"linears_of_rows", linears_of_rows, rows_quantized_and_multiplied},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
