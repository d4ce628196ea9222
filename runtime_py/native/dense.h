// Matrices of linear algebra: batches of them, and systems of equations.
//
// What is computed with lies row by row in memory of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels.h"
#include "types.h"

namespace kvc {

// One matrix of a batch, by strides.
template <class T>
struct MatrixView {
  T* data;
  int64_t rows, columns, row_stride, stride;

  T& at(int64_t i, int64_t j) const { return data[i * row_stride + j * stride]; }

  MatrixView turned() const { return {data, columns, rows, stride, row_stride}; }

  void read(T* to) const {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) to[i * columns + j] = at(i, j);
    }
  }

  void write(const T* from) const {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) at(i, j) = from[i * columns + j];
    }
  }
};

// How many matrices the dims before the last two make.
inline int64_t matrices_of(const Tensor& x) {
  int64_t count = 1;
  for (int i = 0; i < x.rank - 2; ++i) count *= x.dims[i];
  return count;
}

// Whether the matrices of x can be repeated to those of `out`; both have two dims at least.
inline bool batch_fits(Tensor x, Tensor out) {
  x.rank -= 2;
  out.rank -= 2;
  return repeats_to(x, out);
}

// Where matrix `index` of those of `out` begins in x, whose batch is broadcast to that of `out`.
inline int64_t matrix_offset(const Tensor& x, const Tensor& out, int64_t index) {
  int64_t offset = 0;
  for (int axis = out.rank - 3, own = x.rank - 3; own >= 0; --axis, --own) {
    if (x.dims[own] != 1) offset += index % out.dims[axis] * x.strides[own];
    index /= out.dims[axis];
  }
  return offset;
}

// Matrix `index` of those of `out`, to which the batch of x is broadcast.
template <class T>
MatrixView<T> matrix_of(const Tensor& x, const Tensor& out, int64_t index) {
  return {x.as<T>() + matrix_offset(x, out, index), x.dim(-2), x.dim(-1), x.stride(-2), x.stride(-1)};
}

// y -= factor * x, n of them.
template <class T>
void subtract(const T* x, T factor, int64_t n, T* y) {
  for (int64_t i = 0; i < n; ++i) y[i] -= factor * x[i];
}

// Factorises a [n, n] into L, whose diagonal is 1, and U, in its place, with the greatest
// pivot of each column: row i was exchanged with pivots[i]. Returns 0, or the place of the
// first pivot that is 0, from 1.
template <class T>
int32_t factorise(T* a, int64_t n, int64_t* pivots) {
  int32_t failed = 0;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i) {
      if (std::abs(a[i * n + k]) > std::abs(a[pivot * n + k])) pivot = i;
    }
    pivots[k] = pivot;
    if (pivot != k) std::swap_ranges(a + k * n, a + k * n + n, a + pivot * n);
    const T value = a[k * n + k];
    if (value == 0) {
      if (failed == 0) failed = static_cast<int32_t>(k + 1);
      continue;
    }
    for (int64_t i = k + 1; i < n; ++i) {
      const T factor = a[i * n + k] /= value;
      subtract(a + k * n + k + 1, factor, n - k - 1, a + i * n + k + 1);
    }
  }
  return failed;
}

// Solves a x = b for triangular a [n, n]; b [n, count] becomes x. `unit`: the diagonal is 1.
template <class T>
void substitute(const MatrixView<T>& a, bool upper, bool unit, int64_t count, T* b) {
  const int64_t n = a.rows;
  for (int64_t step = 0; step < n; ++step) {
    const int64_t i = upper ? n - 1 - step : step;
    T* row = b + i * count;
    for (int64_t k = upper ? i + 1 : 0, end = upper ? n : i; k < end; ++k) {
      subtract(b + k * count, a.at(i, k), count, row);
    }
    if (unit) continue;
    const T pivot = a.at(i, i);
    for (int64_t j = 0; j < count; ++j) row[j] /= pivot;
  }
}

// Solves a x = b after `factorise`; b [n, count] becomes x.
template <class T>
void solve_factorised(T* a, const int64_t* pivots, int64_t n, int64_t count, T* b) {
  for (int64_t i = 0; i < n; ++i) {
    if (pivots[i] != i) std::swap_ranges(b + i * count, b + (i + 1) * count, b + pivots[i] * count);
  }
  const MatrixView<T> factors{a, n, n, n, 1};
  substitute(factors, false, true, count, b);
  substitute(factors, true, false, count, b);
}

// Contracts: operand i has matrices of floats, as large as a workspace takes.
inline bool matrices_of_floats(Check& c, int i, bool square) {
  constexpr int64_t kMostRows = 1 << 20;
  if (!c.dtype(i, kWideFloats) || !c.rank(i, 2)) return false;
  const int64_t rows = c[i].dim(-2), columns = c[i].dim(-1);
  return c.holds(!square || rows == columns, "a matrix that is not square", rows, columns) &&
         c.holds(rows <= kMostRows && columns <= kMostRows, "a matrix too large", rows, columns);
}

// The matrices that are worth another thread, of n operations each.
inline int64_t grain_of_matrices(int64_t n) { return 1 + 32768 / (n + 1); }

}  // namespace kvc
