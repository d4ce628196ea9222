// Kernels of inverses, determinants, systems of equations and Cholesky's factors.
//
// All matrices are factorised, with partial pivoting, before the first result is written.
#include <cmath>

#include "dense.h"
#include "kernels.h"
#include "lane_sums.h"
#include "pool.h"

namespace kvc {
namespace {

// The factors of a batch of square matrices, in a workspace.
template <class T>
struct Factors {
  int64_t count, n;  // matrices, and their rows
  T* values = nullptr;
  int64_t* pivots = nullptr;
  int32_t* failed = nullptr;  // 0, or the place of the pivot that is 0, from 1

  // `turned`: of the matrices turned. `values` is null where memory is lacking.
  Factors(const Tensor& x, bool turned, const Context& context) : count(matrices_of(x)), n(x.dim(-1)) {
    const int64_t cells = count * n * n, rows = count * n;
    auto* memory = static_cast<char*>(
        context.workspace(cells * sizeof(T) + rows * sizeof(int64_t) + count * sizeof(int32_t)));
    if (memory == nullptr) return;
    pivots = reinterpret_cast<int64_t*>(memory);
    values = reinterpret_cast<T*>(pivots + rows);
    failed = reinterpret_cast<int32_t*>(values + cells);
    parallel(count, grain_of_matrices(n * n * n), context.threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const MatrixView<T> matrix = matrix_of<T>(x, x, i);
        (turned ? matrix.turned() : matrix).read(of(i));
        failed[i] = factorise(of(i), n, pivots + i * n);
      }
    });
  }

  T* of(int64_t i) const { return values + i * n * n; }

  // Refuses because of the first matrix that is singular.
  bool check(const Tensor& x, const Context& context) const {
    for (int64_t i = 0; i < count; ++i) {
      if (failed[i] != 0) return context.refuse(Fault::kSingular, x.rank > 2 ? i : -1, failed[i]);
    }
    return true;
  }

  void solve(int64_t i, int64_t columns, T* b) const {
    solve_factorised(of(i), pivots + i * n, n, columns, b);
  }
};

// Calls function(zero of the type) for the floats of x; true unless it says otherwise.
template <class F>
bool for_floats(const Tensor& x, const F& function) {
  bool done = true;
  with_float(x.dtype, [&](auto zero) { done = function(zero); });
  return done;
}

// `info`: where the status of each matrix goes, or null; then a singular one is refused.
bool invert(const Tensor& out, const Tensor* info, bool checked, const Tensor& x, const Context& context) {
  return for_floats(x, [&](auto zero) {
    using T = decltype(zero);
    const Factors<T> factors(x, false, context);
    if (factors.values == nullptr) return context.complete();
    if (checked && !factors.check(x, context)) return false;
    const int64_t n = factors.n;
    parallel(factors.count, grain_of_matrices(n * n * n), context.threads,
             [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        T* to = out.as<T>() + i * n * n;
        std::fill(to, to + n * n, T{0});
        for (int64_t row = 0; row < n; ++row) to[row * n + row] = 1;
        factors.solve(i, n, to);
        if (info != nullptr) info->as<int32_t>()[i] = factors.failed[i];
      }
    });
    return true;
  });
}
bool inverse(const Step& step, const Context& context) {
  return invert(step.tensors[0], nullptr, true, step.tensors[1], context);
}
bool inverse_told(const Step& step, const Context& context) {
  return invert(step.tensors[0], step.tensors + 1, step.integers[0] != 0, step.tensors[2], context);
}

// The determinant; or its sign, and the logarithm of its size. Factors are those of the turned
// matrix, as in eager, which tells whether a singular one has a pivot that is 0.
template <bool kLogarithm>
bool determinant(const Step& step, const Context& context) {
  const Tensor& x = step.tensors[kLogarithm ? 2 : 1];
  return for_floats(x, [&](auto zero) {
    using T = decltype(zero);
    const Factors<T> factors(x, true, context);
    if (factors.values == nullptr) return context.complete();
    for (int64_t i = 0; i < factors.count; ++i) {
      T product = 1, logarithm = 0;
      for (int64_t k = 0; k < factors.n; ++k) {
        const T value = factors.of(i)[k * factors.n + k];
        const T sign = value != value ? value : static_cast<T>((value > 0) - (value < 0));
        product *= kLogarithm ? sign : value;
        if (kLogarithm) logarithm += std::log(std::abs(value));
        if (factors.pivots[i * factors.n + k] != k) product = -product;
      }
      step.tensors[0].as<T>()[i] = product;
      if (kLogarithm) step.tensors[1].as<T>()[i] = logarithm;
    }
    return true;
  });
}

// Adds a last axis of one element.
Tensor as_column(Tensor x) {
  x.dims[x.rank] = 1;
  x.strides[x.rank++] = 1;
  return x;
}

// Calls function(matrix index, right side [n, columns], columns) for each system; what it
// makes of the right side is written to `out`. `left`: a x = b; else x a = b, which is solved
// turned.
template <class T, class F>
bool for_systems(const Tensor& out, const Tensor& b, bool left, const Context& context, const F& function) {
  if (out.count() == 0) return true;
  const int64_t n = out.dim(left ? -2 : -1), columns = out.dim(left ? -1 : -2);
  parallel(matrices_of(out), grain_of_matrices(n * n * columns), context.threads,
           [&](int64_t begin, int64_t end, int) {
    auto* right = static_cast<T*>(context.workspace(n * columns * sizeof(T), 1));
    if (right == nullptr) return;
    for (int64_t i = begin; i < end; ++i) {
      const auto turned = [left](const MatrixView<T>& matrix) { return left ? matrix : matrix.turned(); };
      turned(matrix_of<T>(b, out, i)).read(right);
      function(i, right, columns);
      turned(matrix_of<T>(out, out, i)).write(right);
    }
  });
  return context.complete();
}

// Whether the right sides of systems are vectors.
bool of_vectors(const Tensor& a, const Tensor& b) {
  return b.rank == 1 || (b.rank == a.rank - 1 && std::equal(b.dims, b.dims + b.rank, a.dims));
}

// As `invert`, of systems a x = b or x a = b.
bool solve_systems(Tensor out, const Tensor* info, bool checked, const Tensor& a, Tensor b, bool left,
                   const Context& context) {
  if (of_vectors(a, b)) {
    out = as_column(out);
    b = as_column(b);
  }
  return for_floats(a, [&](auto zero) {
    using T = decltype(zero);
    const Factors<T> factors(a, !left, context);
    if (factors.values == nullptr) return context.complete();
    if (checked && !factors.check(a, context)) return false;
    if (info != nullptr) std::copy(factors.failed, factors.failed + factors.count, info->as<int32_t>());
    Tensor places = a;  // of the factors, by the strides of matrices
    int64_t stride = factors.n * factors.n;
    for (int axis = a.rank - 3; axis >= 0; --axis) {
      places.strides[axis] = stride;
      stride *= a.dims[axis];
    }
    places.data = factors.values;
    return for_systems<T>(out, b, left, context, [&](int64_t i, T* right, int64_t columns) {
      const int64_t offset = matrix_of<T>(places, out, i).data - factors.values;
      factors.solve(offset / (factors.n * factors.n), columns, right);
    });
  });
}
bool solve(const Step& step, const Context& context) {
  const Tensor* given = step.tensors + 1;
  return solve_systems(step.tensors[0], nullptr, true, given[0], given[1], step.integers[0] != 0, context);
}
bool solve_told(const Step& step, const Context& context) {
  const Tensor* given = step.tensors + 2;
  return solve_systems(step.tensors[0], step.tensors + 1, step.integers[1] != 0, given[0], given[1],
                       step.integers[0] != 0, context);
}

// Arguments: whether a is the upper triangle, whether it is at the left, whether its diagonal
// is 1.
bool solve_triangular(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  const bool upper = step.integers[0] != 0, left = step.integers[1] != 0, unit = step.integers[2] != 0;
  return for_floats(out, [&](auto zero) {
    using T = decltype(zero);
    return for_systems<T>(out, step.tensors[2], left, context, [&](int64_t i, T* right, int64_t columns) {
      const MatrixView<T> matrix = matrix_of<T>(a, out, i);
      substitute(left ? matrix : matrix.turned(), upper == left, unit, columns, right);
    });
  });
}

// The sum of products of n elements.
template <class T>
T dot(const T* a, const T* b, int64_t n) {
  return lane_sum<8, T>(n, [=](int64_t i) { return a[i] * b[i]; });
}

// Cholesky's factor of the lower triangle of a [n, n], in its place, column by column. Returns
// 0, or the order of the first minor that is not positive, from 1; then it ends there.
template <class T>
int32_t take_root(T* a, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    T* row = a + j * n;
    row[j] -= dot(row, row, j);
    if (!(row[j] > 0)) return static_cast<int32_t>(j + 1);
    row[j] = std::sqrt(row[j]);
    for (int64_t i = j + 1; i < n; ++i) a[i * n + j] = (a[i * n + j] - dot(a + i * n, row, j)) / row[j];
  }
  return 0;
}

bool factorise_roots(const Tensor& out, const Tensor* info, bool checked, const Tensor& x, bool upper,
                     const Context& context) {
  return for_floats(x, [&](auto zero) {
    using T = decltype(zero);
    const int64_t count = matrices_of(x), n = x.dim(-1), size = n * n;
    auto* values = static_cast<T*>(context.workspace(count * (size * sizeof(T) + sizeof(int32_t))));
    if (values == nullptr) return context.complete();
    auto* failed = reinterpret_cast<int32_t*>(values + count * size);
    parallel(count, grain_of_matrices(size * n), context.threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const MatrixView<T> matrix = matrix_of<T>(x, x, i);
        (upper ? matrix.turned() : matrix).read(values + i * size);
        failed[i] = take_root(values + i * size, n);
      }
    });
    for (int64_t i = 0; checked && i < count; ++i) {
      if (failed[i] != 0) return context.refuse(Fault::kSingular, x.rank > 2 ? i : -1, failed[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
      const MatrixView<T> to = matrix_of<T>(out, out, i);
      T* from = values + i * size;
      for (int64_t row = 0; row < n; ++row) std::fill(from + row * n + row + 1, from + (row + 1) * n, T{0});
      (upper ? to.turned() : to).write(from);
    }
    if (info != nullptr) std::copy(failed, failed + count, info->as<int32_t>());
    return true;
  });
}
bool cholesky(const Step& step, const Context& context) {
  return factorise_roots(step.tensors[0], nullptr, true, step.tensors[1], step.integers[0] != 0, context);
}
bool cholesky_told(const Step& step, const Context& context) {
  return factorise_roots(step.tensors[0], step.tensors + 1, step.integers[1] != 0, step.tensors[2],
                         step.integers[0] != 0, context);
}

// Operand i has a number for each matrix of x.
bool for_each_matrix(Check& c, int i, int x, DTypes dtypes) {
  return c.dtype(i, dtypes) && c.packed(i) && c.count(i, matrices_of(c[x]));
}
constexpr DTypes kStatus = only(DType::kInt32);

// Results as large as x, and perhaps a status of each matrix. `integers`: how many there are.
bool factorised(Check& c, bool told, int integers) {
  const int x = told ? 2 : 1;
  return c.operands(x, x + 1) && c.settings(integers) && matrices_of_floats(c, x, true) &&
         c.alike(0, x) && c.packed(0) && (!told || for_each_matrix(c, 1, x, kStatus));
}
template <bool kTold, int kIntegers>
bool factors(Check& c) {
  return factorised(c, kTold, kIntegers);
}

template <bool kLogarithm>
bool determined(Check& c) {
  const int x = kLogarithm ? 2 : 1;
  return c.operands(x, x + 1) && matrices_of_floats(c, x, true) &&
         for_each_matrix(c, 0, x, only(c[x].dtype)) &&
         (!kLogarithm || for_each_matrix(c, 1, x, only(c[x].dtype)));
}

// Systems a x = b or x a = b, whose right sides are `b` and whose solutions `out` has.
bool of_systems(Check& c, int a, const Tensor& out, const Tensor& b, bool left) {
  const int64_t n = c[a].dim(-1);
  const bool shaped =
      c.holds(out.rank >= 2 && b.rank >= 2 && b.rank <= out.rank, "rank of an operand", out.rank,
              b.rank) &&
      c.holds(out.dim(-2) == b.dim(-2) && out.dim(-1) == b.dim(-1), "shape of a right side") &&
      c.holds(out.dim(left ? -2 : -1) == n, "sizes of a system", n);
  return shaped &&
         c.holds(c[a].rank <= out.rank && batch_fits(c[a], out) && batch_fits(b, out),
                 "shape of a batch") &&
         c.holds(bounded_product(out.dim(-1), out.dim(-2)) <= kMostProduct / kMaxRank,
                 "a matrix too large");
}

template <bool kTold>
bool solved(Check& c) {
  const int a = kTold ? 2 : 1, b = a + 1;
  const bool right = c.operands(a, b + 1) && c.settings(a) && matrices_of_floats(c, a, true) &&
                     c.same_dtype(0, a) && c.same_dtype(b, a) && c.rank(b, 1) &&
                     (!kTold || for_each_matrix(c, 1, a, kStatus));
  if (!right) return false;
  Tensor out = c[0], given = c[b];
  if (of_vectors(c[a], given)) {
    if (!c.rank(0, 0, kMaxRank - 1)) return false;
    out = as_column(out);
    given = as_column(given);
  }
  return of_systems(c, a, out, given, c.integer(0) != 0);
}

bool solved_by_triangles(Check& c) {
  return c.operands(1, 3) && c.settings(3) && matrices_of_floats(c, 1, true) &&
         c.same_dtype(0, 1) && c.same_dtype(2, 1) &&
         of_systems(c, 1, c[0], c[2], c.integer(1) != 0);
}

}  // namespace

const Entry kLinearAlgebra[] = {
    {"aten::linalg_inv", inverse, factors<false, 0>},
    {"aten::linalg_inv_ex", inverse_told, factors<true, 1>},
    {"aten::linalg_det", determinant<false>, determined<false>},
    {"aten::linalg_slogdet", determinant<true>, determined<true>},
    {"aten::linalg_solve", solve, solved<false>},
    {"aten::linalg_solve_ex", solve_told, solved<true>},
    {"aten::linalg_solve_triangular", solve_triangular, solved_by_triangles},
    {"aten::linalg_cholesky", cholesky, factors<false, 1>},
    {"aten::linalg_cholesky_ex", cholesky_told, factors<true, 2>},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
