// Kernels of matrix products, those of quantized rows left out.
#include "products.h"

#include <algorithm>

#include "kernels.h"
#include "matrices.h"
#include "pool.h"

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

// The same of other dtypes; the rows of x and the result lie together.
void linear_plainly(const Tensor& out, const Matrix& x, const Tensor& weight, const Tensor& bias,
                    int threads) {
  const int64_t depth = weight.dims[1], columns = weight.dims[0], rows = out.count() / columns;
  const Tensor to{out.data, out.dtype, 2, {rows, columns}, {columns, 1}};
  const Tensor from{const_cast<void*>(x.data), out.dtype, 2, {rows, depth}, {x.stride, 1}};
  const Tensor turned{weight.data, out.dtype, 2, {depth, columns}, {weight.strides[1], weight.strides[0]}};
  multiply_plainly(to, from, turned, threads);
  if (!bias) return;
  with_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < rows * columns; ++i) {
      out.as<T>()[i] = static_cast<T>(out.as<T>()[i] + bias.as<const T>()[i % columns * bias.strides[0]]);
    }
  });
}

// x [..., k] times weight [n, k], transposed, plus bias [n]; all of one dtype.
bool linear(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &weight = step.tensors[2];
  const Tensor& bias = step.tensors[3];
  const int64_t depth = weight.dim(1), columns = weight.dim(0);
  if (out.count() == 0) return true;
  Matrix rows, columns_of;
  if (!rows_together(x, context, 0, &rows) || !rows_together(weight, context, 1, &columns_of)) {
    return context.complete();
  }
  if (out.dtype != DType::kFloat32 && out.dtype != DType::kBFloat16) {
    linear_plainly(out, rows, weight, bias, context.threads);
    return true;
  }
  const FloatProduct product{rows.data, rows.stride, columns_of.data, columns_of.stride,
                             bias.data, out.data,    columns,         1,
                             out.count() / columns,  columns,         depth};
  if (out.dtype == DType::kBFloat16) return multiply_bfloat16(product, context);
  multiply(product, context.threads);
  return true;
}

// x [..., k] times weight [n, k], int8, transposed, times a scale for each of n, plus bias [n].
bool linear_w8(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &weight = step.tensors[2];
  const float *scale = step.tensors[3].as<const float>(), *bias = step.tensors[4].as<const float>();
  const int64_t depth = weight.dims[1], columns = weight.dims[0];
  if (out.count() == 0) return true;
  Matrix rows;
  if (!rows_together(x, context, 0, &rows)) return context.complete();
  const auto kernel = product_kernels().floats;
  const int64_t count = out.count() / columns;
  const int64_t part = std::max<int64_t>(8, 65536 / (depth + 1) / 8 * 8);  // columns at a time
  parallel((columns + part - 1) / part, 1, context.threads, [&](int64_t begin, int64_t end, int) {
    auto* widened = static_cast<float*>(context.workspace(part * depth * sizeof(float), 3));
    if (widened == nullptr) return;
    for (int64_t first = begin * part; first < std::min(columns, end * part); first += part) {
      const int64_t n = std::min(part, columns - first);
      const int8_t* from = weight.as<const int8_t>() + first * depth;
      for (int64_t i = 0; i < n * depth; ++i) widened[i] = from[i];
      float* to = out.as<float>() + first;
      kernel({rows.data, rows.stride, widened, depth, nullptr, to, columns, 1, count, n, depth}, 0, n);
      for (int64_t row = 0; row < count; ++row, to += columns) {
        for (int64_t j = 0; j < n; ++j) {
          to[j] *= scale[first + j];
          if (bias != nullptr) to[j] += bias[first + j];
        }
      }
    }
  });
  return context.complete();
}

// One of a batch of matrices: [m, k] times [k, n].
bool multiply_matrices(const Tensor& out, Tensor a, Tensor b, const Context& context) {
  if (out.dtype != DType::kFloat32) {
    multiply_plainly(out, a, b, context.threads);
    return true;
  }
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
  found.data = whole.as<char>() + offset * itemsize(whole.dtype);
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

// out [.., columns] of x [.., depth].
bool of_rows(Check& c, int64_t columns, int64_t depth) {
  return c.rank(1, 1) && c.same_leading(0, 1, 1) && c.packed(0) && c.size(0, -1, columns) &&
         c.size(1, -1, depth);
}

bool multiplied(Check& c) {
  return c.operands(1, 4, 0b1000) && c.dtype(0, kTypes | only(DType::kBFloat16)) &&
         c.same_dtype(1, 0) && c.same_dtype(2, 0) && c.rank(2, 2, 2) &&
         of_rows(c, c[2].dims[0], c[2].dims[1]) &&
         c.vector_or_none(3, c[2].dims[0], only(c[0].dtype));
}

bool multiplied_by_int8(Check& c) {
  return c.operands(1, 5, 0b10000) && c.dtype(0, kFloat) && c.dtype(1, kFloat) &&
         c.dtype(2, only(DType::kInt8)) && c.rank(2, 2, 2) && c.packed(2) &&
         of_rows(c, c[2].dims[0], c[2].dims[1]) && c.vector_or_none(3, c[2].dims[0], kFloat) &&
         c.vector_or_none(4, c[2].dims[0], kFloat);
}

bool matrices(Check& c) { return c.operands(1, 3) && matrices_multiplied(c, 0, 1, 2); }

}  // namespace

bool matrices_multiplied(Check& c, int out, int a, int b) {
  const Tensor &made = c[out], &left = c[a], &right = c[b];
  const bool typed = c.dtype(out, kTypes) && c.same_dtype(a, out) && c.same_dtype(b, out) &&
                     c.rank(a, 1) && c.rank(b, 1);
  const int rows = left.rank > 1 ? 1 : 0, columns = right.rank > 1 ? 1 : 0;
  if (!typed || !c.rank(out, rows + columns, kMaxRank - 2 + rows + columns)) return false;
  Tensor batch = made, lefts = left, rights = right;
  batch.rank -= rows + columns;
  lefts.rank = std::max(0, left.rank - 2);
  rights.rank = std::max(0, right.rank - 2);
  return c.holds(repeats_to(lefts, batch) && repeats_to(rights, batch), "shape of a batch") &&
         c.size(b, columns != 0 ? -2 : -1, left.dim(-1)) &&
         (rows == 0 || c.size(out, batch.rank, left.dim(-2))) &&
         (columns == 0 || c.size(out, -1, right.dim(-1)));
}

const Entry kProducts[] = {
    {"aten::linear", linear, multiplied},
    {"aten::matmul", matmul, matrices},
    {"aten::mm", matmul, matrices},
    {"aten::bmm", matmul, matrices},
    {"kvc::linear_w8", linear_w8, multiplied_by_int8},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
