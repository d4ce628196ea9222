// Kernels of Householder's reflections, and of the exponential of matrices.
#include <cmath>
#include <limits>

#include "dense.h"
#include "kernels.h"
#include "pool.h"

namespace kvc {
namespace {

// Applies I - tau v v^T to rows [count, columns] from the left; v[0] is 1, the others lie a
// `step` apart. `sums`: memory for as many as columns.
template <class T>
void reflect(const T* v, int64_t step, T tau, int64_t count, T* rows, int64_t width, int64_t columns,
             T* sums) {
  if (tau == 0) return;
  std::copy(rows, rows + columns, sums);
  for (int64_t i = 1; i < count; ++i) subtract(rows + i * width, -v[i * step], columns, sums);
  subtract(sums, tau, columns, rows);
  for (int64_t i = 1; i < count; ++i) subtract(sums, tau * v[i * step], columns, rows + i * width);
}

// Turns column 0 of a [rows, ..] into one whose elements after the first are zero: it becomes
// the reflection's v, but for the first element, the new one of the column. Returns tau. (As
// LAPACK's larfg has it: the new element has the sign that the old one has not.)
template <class T>
T reflection(T* a, int64_t rows, int64_t width) {
  double square = 0;
  for (int64_t i = 1; i < rows; ++i) {
    const double value = a[i * width];
    square += value * value;
  }
  if (square == 0) return 0;
  const double alpha = a[0], size = std::sqrt(alpha * alpha + square);
  const double beta = std::signbit(alpha) ? size : -size;
  const double factor = 1 / (alpha - beta);
  for (int64_t i = 1; i < rows; ++i) a[i * width] = static_cast<T>(a[i * width] * factor);
  a[0] = static_cast<T>(beta);
  return static_cast<T>((beta - alpha) / beta);
}

// The product of `count` reflections, whose vectors are columns below the diagonal of
// a [.., width]: its first columns, [rows, columns].
template <class T>
void multiply_reflections(const T* a, int64_t width, const T* tau, int64_t count, int64_t rows,
                          int64_t columns, T* q, T* sums) {
  std::fill(q, q + rows * columns, T{0});
  for (int64_t i = 0; i < std::min(rows, columns); ++i) q[i * columns + i] = 1;
  for (int64_t k = count - 1; k >= 0; --k) {
    reflect(a + k * width + k, width, tau[k], rows - k, q + k * columns + k, columns, columns - k, sums);
  }
}

enum class Mode : int64_t { kReduced = 0, kComplete = 1, kR = 2 };  // the numbers of arguments.py

bool qr(const Step& step, const Context& context) {
  const Tensor &q = step.tensors[0], &r = step.tensors[1], &x = step.tensors[2];
  const auto mode = static_cast<Mode>(step.integers[0]);
  const int64_t rows = x.dim(-2), columns = x.dim(-1), least = std::min(rows, columns);
  const int64_t inner = r.dim(-2), size = rows * columns;
  with_float(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel(matrices_of(x), grain_of_matrices(size * least), context.threads,
             [&](int64_t begin, int64_t end, int) {
      const int64_t cells = size + least + std::max(columns, inner);
      auto* a = static_cast<T*>(context.workspace(cells * sizeof(T)));
      if (a == nullptr) return;
      T *tau = a + size, *sums = tau + least;
      for (int64_t i = begin; i < end; ++i) {
        matrix_of<T>(x, x, i).read(a);
        for (int64_t k = 0; k < least; ++k) {
          T* corner = a + k * columns + k;
          tau[k] = reflection(corner, rows - k, columns);
          reflect(corner, columns, tau[k], rows - k, corner + 1, columns, columns - k - 1, sums);
        }
        T* to = r.as<T>() + i * inner * columns;
        for (int64_t row = 0; row < inner; ++row) {
          for (int64_t j = 0; j < columns; ++j) to[row * columns + j] = j < row ? T{0} : a[row * columns + j];
        }
        if (mode == Mode::kR) continue;
        multiply_reflections(a, columns, tau, least, rows, inner, q.as<T>() + i * rows * inner, sums);
      }
    });
  });
  return context.complete();
}

bool householder_product(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &factors = step.tensors[2];
  const int64_t rows = x.dim(-2), columns = x.dim(-1), count = factors.dim(-1), size = rows * columns;
  with_float(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel(matrices_of(x), grain_of_matrices(size * columns), context.threads,
             [&](int64_t begin, int64_t end, int) {
      auto* a = static_cast<T*>(context.workspace((size + columns) * sizeof(T)));
      if (a == nullptr) return;
      for (int64_t i = begin; i < end; ++i) {
        matrix_of<T>(x, x, i).read(a);
        multiply_reflections(a, columns, factors.as<const T>() + i * count, count, rows, columns,
                             out.as<T>() + i * size, a + size);
      }
    });
  });
  return context.complete();
}

// to = a b, [n, n].
void multiply(const double* a, const double* b, int64_t n, double* to) {
  std::fill(to, to + n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < n; ++k) subtract(b + k * n, -a[i * n + k], n, to + i * n);
  }
}

// e to the power of a [n, n], in its place: the fraction of two polynomials of degree 13 of a
// halved until its norm is small, squared as often (N. J. Higham, "The scaling and squaring
// method for the matrix exponential revisited", 2005). `memory`: for 7 matrices; `pivots`: for n.
void exponentiate(double* a, int64_t n, double* memory, int64_t* pivots) {
  constexpr double kSmall = 5.371920351148152;
  constexpr double b[] = {64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800,
                          129060195264000,   10559470521600,    670442572800,     33522128640,
                          1323241920,        40840800,          960960,           16380,
                          182,               1};
  const int64_t size = n * n;
  double norm = 0;  // the greatest sum of a column
  for (int64_t j = 0; j < n; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::abs(a[i * n + j]);
    norm = sum > norm || sum != sum ? sum : norm;
  }
  if (!std::isfinite(norm)) return std::fill(a, a + size, std::numeric_limits<double>::quiet_NaN());
  int halvings = 0;
  if (norm > kSmall) std::frexp(norm / kSmall, &halvings);
  for (int64_t i = 0; i < size; ++i) a[i] = std::ldexp(a[i], -halvings);
  double *a2 = memory, *a4 = a2 + size, *a6 = a4 + size, *odd = a6 + size, *even = odd + size;
  double *high = even + size, *other = high + size;
  multiply(a, a, n, a2);
  multiply(a2, a2, n, a4);
  multiply(a4, a2, n, a6);
  // to = a6 (b[k + 12] a6 + b[k + 10] a4 + b[k + 8] a2) + b[k + 6] a6 + .. + b[k] of the identity
  const auto polynomial = [&](int k, double* to) {
    for (int64_t i = 0; i < size; ++i) high[i] = b[k + 12] * a6[i] + b[k + 10] * a4[i] + b[k + 8] * a2[i];
    multiply(a6, high, n, to);
    for (int64_t i = 0; i < size; ++i) to[i] += b[k + 6] * a6[i] + b[k + 4] * a4[i] + b[k + 2] * a2[i];
    for (int64_t i = 0; i < n; ++i) to[i * n + i] += b[k];
  };
  polynomial(1, other);
  multiply(a, other, n, odd);
  polynomial(0, even);
  for (int64_t i = 0; i < size; ++i) {
    a[i] = even[i] + odd[i];
    even[i] -= odd[i];
  }
  factorise(even, n, pivots);
  solve_factorised(even, pivots, n, n, a);
  for (; halvings > 0; --halvings) {
    multiply(a, a, n, other);
    std::copy(other, other + size, a);
  }
}

bool matrix_exp(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const int64_t n = x.dim(-1), size = n * n;
  with_float(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel(matrices_of(x), grain_of_matrices(size * n), context.threads,
             [&](int64_t begin, int64_t end, int) {
      auto* a = static_cast<double*>(context.workspace((8 * size + n) * sizeof(double)));
      if (a == nullptr) return;
      for (int64_t i = begin; i < end; ++i) {
        const MatrixView<T> from = matrix_of<T>(x, x, i);
        for (int64_t j = 0; j < size; ++j) a[j] = from.at(j / n, j % n);
        exponentiate(a, n, a + size, reinterpret_cast<int64_t*>(a + 8 * size));
        for (int64_t j = 0; j < size; ++j) out.as<T>()[i * size + j] = static_cast<T>(a[j]);
      }
    });
  });
  return context.complete();
}

// The first result may be left empty, with mode r.
bool orthogonal(Check& c) {
  const bool right = c.operands(2, 3) && c.settings(1) && c.between(0, 0, 2) &&
                     matrices_of_floats(c, 2, false) && c.same_dtype(0, 2) && c.same_dtype(1, 2) &&
                     c.both_packed(0, 1) && c.same_leading(1, 2, 2);
  if (!right) return false;
  const int64_t rows = c[2].dim(-2), columns = c[2].dim(-1), inner = c[1].dim(-2);
  const bool complete = static_cast<Mode>(c.integer(0)) == Mode::kComplete;
  const bool sized =
      c.size(1, -1, columns) && c.size(1, -2, complete ? rows : std::min(rows, columns));
  if (!sized || static_cast<Mode>(c.integer(0)) == Mode::kR) return sized;
  return c.same_leading(0, 2, 2) && c.size(0, -2, rows) && c.size(0, -1, inner);
}

bool reflected(Check& c) {
  const bool right = c.operands(1, 3) && matrices_of_floats(c, 1, false) && c.alike(0, 1) &&
                     c.same_dtype(2, 1) && c.both_packed(0, 2) && c.rank(2, 1);
  if (!right) return false;
  const int64_t rows = c[1].dim(-2), columns = c[1].dim(-1), count = c[2].dim(-1);
  return c.holds(count <= columns && columns <= rows, "more reflections than columns", count,
                 columns) &&
         c.count(2, bounded_product(matrices_of(c[1]), count));
}

bool exponentiated(Check& c) {
  return c.operands(1, 2) && matrices_of_floats(c, 1, true) && c.alike(0, 1) && c.packed(0);
}

}  // namespace

const Entry kDecompositions[] = {
    {"aten::linalg_qr", qr, orthogonal},
    {"aten::linalg_householder_product", householder_product, reflected},
    {"aten::linalg_matrix_exp", matrix_exp, exponentiated},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
