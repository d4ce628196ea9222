// Kernels that accumulate along an axis.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels.h"
#include "pool.h"
#include "reduced.h"
#include "types.h"

namespace kvc {
namespace {

constexpr int64_t kGrain = 16384;  // elements that are worth another thread

// Calls function(row of x, its stride, length, offset in the results, their stride) for
// each row along an axis; results lie together.
template <class T, class F>
void for_rows(const Tensor& x, const Tensor& out, int64_t axis, int threads, const F& function) {
  const int64_t axes[2] = {1, axis};
  const Reduced from(x, axes), to(out, axes);
  const int64_t read = from.gone_rank != 0 ? from.gone_strides[0] : 0;
  const int64_t written = to.gone_rank != 0 ? to.gone_strides[0] : 0;
  parallel(from.kept, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, from.gone)), threads,
           [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t source = Reduced::offset(i, from.kept_rank, from.kept_dims, from.kept_strides);
      const int64_t target = Reduced::offset(i, to.kept_rank, to.kept_dims, to.kept_strides);
      function(x.as<const T>() + source, read, from.gone, target, written);
    }
  });
}

// Of floats in double; integers wrap around.
template <class T>
using Total = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;

struct Sum {
  static constexpr int kStart = 0;
  template <class A>
  A operator()(A a, A b) const { return a + b; }
};

struct Product {
  static constexpr int kStart = 1;
  template <class A>
  A operator()(A a, A b) const { return a * b; }
};

template <class F>
bool accumulate(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  with_number(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_rows<T>(x, out, step.integers[0], context.threads,
                [&](const T* row, int64_t read, int64_t n, int64_t target, int64_t written) {
      Total<T> total = F::kStart;
      for (int64_t i = 0; i < n; ++i) {
        total = F{}(total, static_cast<Total<T>>(row[i * read]));
        out.as<T>()[target + i * written] = static_cast<T>(total);
      }
    });
  });
  return true;
}

// log(exp(a) + exp(b))
double add_logarithms(double a, double b) {
  if (a != a || b != b) return a + b;
  const double least = std::min(a, b), most = std::max(a, b);
  if (least == most && std::isinf(least)) return most;
  return most + std::log1p(std::exp(least - most));
}

bool logcumsumexp(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  with_float(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_rows<T>(x, out, step.integers[0], context.threads,
                [&](const T* row, int64_t read, int64_t n, int64_t target, int64_t written) {
      double total = -std::numeric_limits<double>::infinity();
      for (int64_t i = 0; i < n; ++i) {
        total = add_logarithms(total, static_cast<double>(row[i * read]));
        out.as<T>()[target + i * written] = static_cast<T>(total);
      }
    });
  });
  return true;
}

// The greatest, or least, so far and its index; of equal ones the last. A NaN stays.
template <bool kMax>
bool extreme(const Step& step, const Context& context) {
  const Tensor &values = step.tensors[0], &indices = step.tensors[1], &x = step.tensors[2];
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_rows<T>(x, values, step.integers[0], context.threads,
                [&](const T* row, int64_t read, int64_t n, int64_t target, int64_t written) {
      int64_t index = 0;
      for (int64_t i = 0; i < n; ++i) {
        const T found = row[index * read], value = row[i * read];
        if (value != value || (kMax ? value >= found : value <= found)) index = i;
        values.as<T>()[target + i * written] = row[index * read];
        indices.as<int64_t>()[target + i * written] = index;
      }
    });
  });
  return true;
}

// Results are as large as x, and lie together.
bool scanned(Check& c, int results, DTypes dtypes) {
  const int x = results;
  const bool right = c.operands(results, x + 1) && c.settings(1) && c.dtype(x, dtypes) &&
                     c.alike(0, x) && c.packed(0) && c.axis(0, c[x].rank);
  return right &&
         (results == 1 || (c.dtype(1, only(DType::kInt64)) && c.same_shape(1, x) && c.packed(1)));
}
template <DTypes kDTypes>
bool accumulated(Check& c) {
  return scanned(c, 1, kDTypes);
}
bool placed(Check& c) { return scanned(c, 2, kTypes); }

}  // namespace

const Entry kScans[] = {
    {"aten::cumsum", accumulate<Sum>, accumulated<kNumbers>},
    {"aten::cumprod", accumulate<Product>, accumulated<kNumbers>},
    {"aten::logcumsumexp", logcumsumexp, accumulated<kWideFloats>},
    {"aten::cummax", extreme<true>, placed},
    {"aten::cummin", extreme<false>, placed},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
