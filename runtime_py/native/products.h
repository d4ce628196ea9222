// Products of matrices, made for each instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "convolution.h"
#include "types.h"

namespace kvc {

// What the elements of a product of floats are: all float32; all bfloat16, or all but x, which
// has been widened to float32; float32 but for w, which is float16 or int8.
enum class Floats { kFloat32, kBFloat16, kWidenedRows, kHalfWeights, kInt8Weights };

// Rows times rows: out[m, n] = bias[n] + sum over k of x[m, k] * w[n, k]. Every sum is
// taken in float32, in eight lanes along k, in the same order for any number of rows and
// columns. Strides are in elements; k lies together.
struct FloatProduct {
  const void* x;
  int64_t x_stride;
  const void* w;
  int64_t w_stride;
  const void* bias;  // or null
  void* out;
  int64_t out_stride, out_step;  // of rows, and of columns
  int64_t rows, columns, depth;
  Floats floats = Floats::kFloat32;
  float* scratch = nullptr;  // of a thread, kWidenedColumns * depth, for kWidenedRows
};
constexpr int64_t kWidenedColumns = 4;

constexpr int16_t kMostFactor = 31;  // of a block of a row
constexpr int64_t kTokens = 16;
constexpr int64_t kBlock = 32;  // of k, that have a zero and a factor in a row
constexpr int64_t kInt4 = kBlock;  // weights along k that have a scale of their own
constexpr int64_t kInt4Columns = 8;  // that lie side by side
constexpr int64_t kInt4Bytes = kInt4Columns * kInt4 / 2;

// How rows of int8 lie, and the parts of k that have scales of their own in int8 weights.
struct RowShape {
  int64_t depth, stride;  // stride: the depth rounded up to 64
  int64_t parts;  // which divide the depth into multiples of kBlock, if there are several

  int64_t part() const { return parts == 1 ? stride : depth / parts; }
  int64_t blocks_of_row() const { return stride / kBlock; }
};

// Rows of int8 that were made at run time, one after the other, with a zero and a factor for
// each kBlock of k: x is about (q - zero) * factor / scale of the row. |q - zero| is at most
// 255, a factor at most 31, so that (q - zero) * factor is at most 7,905, and the sum of two
// such numbers lies within int16.
struct BlockRows {
  int8_t* q;  // [.., stride]; after the depth zeros, as zeros and factors are
  int16_t *zero, *factor;  // [.., stride / kBlock]
};

// The rows that lie one after the other, once more, as products with int4 weights read
// them: q, of each eight first those of even, then those of odd k.
struct Int4Rows {
  const int8_t* q;  // [.., depth]
  const int16_t *zero, *factor;  // [.., depth / kInt4]
  // [.., depth / kInt4, 2]: -8 times the sum of q - zero, of the first and the last four
  // of each eight. At most 8 * 16 * 255, so that they lie within int16.
  const int16_t* eights;
  // (q - zero) * factor summed over each kInt4, for minimums: [.., depth / kInt4]; and of the
  // rows in blocks of tokens: [blocks, depth / kInt4, kTokens]. Null where no product has any.
  const float *sums, *sums_of_tokens;
};

// Rows of int8, as products read them.
//
// The first `blocks` times kTokens rows lie side by side, as the instruction set reads them
// best for products with weights of the dtype that there are; rows that a last block has not
// are zeros. All others lie one after the other, (q - zero) * factor: [.., stride]; where there
// are int8 weights, as they were made, too.
struct Int8Rows : RowShape {
  const int16_t* in_blocks;
  const int16_t* others;
  BlockRows as_made;
  const float* scale;  // of each row
  int64_t rows, blocks;
  Int4Rows int4;  // where there are int4 weights
};

// Rows of int8 times rows of int8 weights, which are divided into parts of k:
// out[m, n] = sum over parts of float(sum of (q[m, k] - zero) * factor * w[n, k]) *
// w_scale[n, part] / scale[m] + bias[n]. The inner sums are exact for up to 65,536 of k, so
// every form of them gives the same; the outer is taken in order, each product and each sum
// rounded. `divided_first`: of one part, the scale of the row divides before w_scale multiplies.
struct Int8Product {
  const int8_t* w;  // [columns, depth]
  int64_t w_stride;
  const float* w_scale;  // [columns, parts]
  bool divided_first;
  const float* bias;  // or null
  float* out;         // [rows, columns]
  int64_t columns;
};

// Rows of int8 times rows of int4 weights, each kInt4 with a scale:
// out[m, n] = sum over b of float(sum of (q[m, k] - zero) * factor * w[n, k]) * w_scale[n, b] /
// scale[m] + bias[n]. The inner sums are exact; the outer is taken in the order of b. A weight is
// w * w_scale, or with minimums (w + 8) * w_scale + w_minimum: after each b, float(sum of
// (q[m, k] - zero) * factor) * (8 * w_scale[n, b] + w_minimum[n, b]) is added.
struct Int4Product {
  // [columns / 8, depth / 8, 8, 4], plus 8: the low half of a byte is k, the high k + 1.
  const uint8_t* w;
  int64_t w_stride;             // of eight columns, a multiple of which there is
  const void* w_scale;          // [columns / 8, depth / block, 8]
  const void* w_minimum;        // as w_scale lies; or null
  DType scale_dtype, minimum_dtype;
  int64_t scale_stride, block;  // block: a multiple of kInt4
  const float* bias;            // or null
  float* out;                   // [rows, columns]
  int64_t columns;
};

// Floats that the scales of some columns of int4 weights take, and as many offsets.
inline int64_t int4_scales_size(const RowShape& shape, int64_t columns) {
  return 2 * columns * (shape.depth / kInt4);
}

// How blocks of rows lie side by side.
struct BlockLayout {
  // int16s for each block.
  int64_t (*size)(const RowShape& shape);
  // Lays out one block or two. What it writes of a first block depends on whether there is a
  // second.
  void (*lay_out)(const BlockRows& rows, int64_t blocks, const RowShape& shape, int16_t* to);
};

// What attention makes of scores of `keys` keys, for some rows of queries: weights
// exp(score - greatest), their sum, and the values mixed by them. Each is computed in an
// order that depends on where keys lie in the piece alone: a key that a row does not see
// has the score -infinity, and adds nothing.
struct Mixture {
  float* scores;  // [rows, stride]; weights afterwards
  int64_t stride;
  int64_t lane;   // of the first key; that many floats before each row are there, too
  const void* v;   // [keys, width], rows at v_stride
  int64_t v_stride;
  const float* v_scale;  // of each key, or null
  float* most;           // [rows]: the greatest score; -infinity where nothing is seen
  float* total;          // [rows]
  float* mixed;          // [rows, width], at mixed_stride
  int64_t mixed_stride;
  int64_t rows, keys, width;
  bool half = false;  // whether v is float16
};

// Rows that are added with weights: y[n] += sum over r of weights[r] * x[r, n], in that order.
struct WeightedRows {
  const float* weights;
  const void* x;  // [rows, columns], rows at stride
  int64_t stride, rows, columns;
  float* y;
  bool int8;  // whether x is int8, else float32
};

// The columns from `begin` to `end` of a product, and what attention needs.
struct ProductKernels {
  void (*floats)(const FloatProduct& product, int64_t begin, int64_t end);
  // `scratch`: scratch_size(shape) of int16, where there are blocks; of weights, laid out. Of
  // int4 first int4_scales_size(shape, columns) floats.
  void (*int8)(const Int8Rows& x, const Int8Product& product, int64_t begin, int64_t end,
               int16_t* scratch);
  void (*int4)(const Int8Rows& x, const Int4Product& product, int64_t begin, int64_t end,
               int16_t* scratch);
  void (*mix)(const Mixture& mixture);
  void (*add_rows)(const WeightedRows& rows);
  // The least and the greatest of a row, zero among them; `wrong` is NaN where an element
  // is not finite.
  void (*range)(const float* x, int64_t n, float* low, float* high, float* wrong);
  // q = x * scale, rounded, halves to even, plus zero, within int8; any for a NaN.
  void (*quantize)(const float* x, int64_t n, float scale, float zero, int8_t* q);
  // What kvc::quantize_blocks makes of a row; returns its scale. q has as many as n; zero and
  // factor have one for each kBlock. `scratch`: 3 floats for each of these, and 24 more.
  float (*quantize_blocks)(const float* x, int64_t n, float* scratch, int8_t* q, int16_t* zero,
                           int16_t* factor);
  // (q - zero) * factor of one row, [stride].
  void (*expand)(const BlockRows& row, int64_t stride, int16_t* to);
  BlockLayout int8_blocks, int4_blocks;
  int64_t columns;  // of a product of blocks, computed together
  int64_t (*scratch_size)(const RowShape& shape);
  // Of each element: exp(x), 1 / (1 + exp(-x)), x / (1 + exp(-x)), x (1 + tanh(a (x + b x^3))) / 2,
  // and the functions of vector_math.h.
  using Run = void (*)(const float* x, int64_t n, float* y);
  Run exp, sigmoid, silu, gelu_tanh;
  Run gelu, erf, tanh, expm1, log, sin, cos;
  // Turns pairs a, b, the halves of a row: a cos - b sin, b cos + a sin; those for the second
  // half begin at `second` of cos and sin.
  void (*turn)(const float* x, const float* cos, const float* sin, int64_t half, int64_t second,
               float* y);
  // To float16, rounded as `Half` does, and back; from bfloat16.
  void (*narrow)(const float* x, int64_t n, Half* y);
  void (*widen)(const Half* x, int64_t n, float* y);
  void (*widen_bfloat16)(const BFloat16* x, int64_t n, float* y);
  void (*widen_int8)(const int8_t* x, int64_t n, float factor, float* y);  // y = x * factor
  // The mean of a short run, and the sum of squares of the distances from it.
  void (*moments)(const float* x, int64_t n, float* mean, float* squares);
  // y = x * factor + offset.
  void (*line)(const float* x, int64_t n, float factor, float offset, float* y);
  ConvolutionKernels convolution;
};

// The instruction sets that are compiled here: all that there are for this processor, or those
// that the build names (KVC_WITH_ALL=0 and KVC_WITH_AVX2=1, say).
#if !defined(KVC_WITH_ALL)
#define KVC_WITH_ALL 1
#endif
#if KVC_WITH_ALL || defined(KVC_WITH_PORTABLE)
#define KVC_HAS_PORTABLE 1
#endif
#if defined(__x86_64__) && (KVC_WITH_ALL || defined(KVC_WITH_AVX2))
#define KVC_HAS_AVX2 1
#endif
#if defined(__x86_64__) && (KVC_WITH_ALL || defined(KVC_WITH_AVX512_VNNI))
#define KVC_HAS_VNNI 1
#endif
#if defined(__aarch64__) && (KVC_WITH_ALL || defined(KVC_WITH_NEON))
#define KVC_HAS_NEON 1
#endif
#if defined(__aarch64__) && (KVC_WITH_ALL || defined(KVC_WITH_NEON_DOT))
#define KVC_HAS_NEON_DOT 1
#endif

// Into the loop that keeps sums in registers, however many statements there are.
#define KVC_INLINE inline __attribute__((always_inline))

extern const ProductKernels kPortableProducts, kAvx2Products, kVnniProducts,
    kNeonProducts, kNeonDotProducts;

// Those of the instruction set that is used, see processor.h.
const ProductKernels& product_kernels();

// out = a b, matrices of one dtype that is neither float32 nor bfloat16; integers wrap around.
void multiply_plainly(const Tensor& out, const Tensor& a, const Tensor& b, int threads);

}  // namespace kvc
