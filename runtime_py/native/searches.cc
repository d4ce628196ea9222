// Kernels that find places in sorted rows, and that reduce rows at places: bags of
// embeddings, elements scattered together, distances of rows.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "copies.h"
#include "dense.h"
#include "elements.h"
#include "kernels.h"
#include "pool.h"

namespace kvc {
namespace {

// How many of n sorted numbers are less than x, or `right`: not greater. A NaN is after all.
template <class T>
int64_t place_of(const T* sorted, int64_t n, T x, bool right) {
  const T* end = right ? std::partition_point(sorted, sorted + n, [x](T one) { return !(one > x); })
                       : std::partition_point(sorted, sorted + n, [x](T one) { return !(one >= x); });
  return end - sorted;
}

// Places of the elements of x, which lie together, in rows that do; each row of x has a
// sorted one of its own, or all share one.
bool search(const Step& step, const Context& context, const Tensor& sorted, const Tensor& x) {
  const Tensor& out = step.tensors[0];
  const bool right = step.integers[1] != 0;
  const int64_t n = sorted.dim(-1), width = sorted.rank > 1 ? x.dim(-1) : x.count();
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel(x.count(), 1024, context.threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const T* row = sorted.as<const T>() + i / width * n;
        const int64_t place = place_of(row, n, x.as<const T>()[i], right);
        if (out.dtype == DType::kInt32) {
          out.as<int32_t>()[i] = static_cast<int32_t>(place);
        } else {
          out.as<int64_t>()[i] = place;
        }
      }
    });
  });
  return true;
}

bool bucketize(const Step& step, const Context& context) {
  return search(step, context, step.tensors[2], step.tensors[1]);
}
bool search_sorted(const Step& step, const Context& context) {
  return search(step, context, step.tensors[1], step.tensors[2]);
}

// One row of a bag. Modes: 0 sum, 1 mean, 2 the greatest; of nothing, zeros.
template <class T>
struct Bag {
  const Tensor &weight, &indices, &factors;
  int64_t mode, padding;

  void fill(int64_t begin, int64_t end, T* to) const {
    const int64_t width = weight.dims[1], stride = weight.strides[1];
    std::fill(to, to + width, T{0});
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = index_at(indices, i);
      if (row == padding) continue;
      const T* from = weight.as<const T>() + row * weight.strides[0];
      const T factor = factors ? factors.as<const T>()[i * factors.strides[0]] : T{1};
      for (int64_t j = 0; j < width; ++j) {
        const T value = from[j * stride];
        if (mode != 2) to[j] += factors ? value * factor : value;
        if (mode == 2 && (count == 0 || value > to[j])) to[j] = value;
      }
      ++count;
    }
    if (mode != 1 || count == 0) return;
    for (int64_t j = 0; j < width; ++j) to[j] /= static_cast<T>(count);
  }
};

// Arguments: weight, indices, offsets, mode, factors?, whether the last offset is an end, the
// row that counts for nothing.
bool embedding_bag(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &weight = step.tensors[1], &indices = step.tensors[2];
  const Tensor& offsets = step.tensors[3];
  const int64_t given = offsets.dims[0], count = indices.count(), bags = out.dims[0];
  int64_t before = 0;
  for (int64_t i = 0; i < given; ++i) {
    const int64_t offset = index_at(offsets, i);
    if (offset < before || offset > count || (i == 0 && offset != 0)) {
      return context.refuse(Fault::kBadOffsets, count);
    }
    before = offset;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = index_at(indices, i);
    if (row < 0 || row >= weight.dims[0]) return context.refuse(Fault::kIndexOutOfRange, row, weight.dims[0]);
  }
  with_float(weight.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Bag<T> bag{weight, indices, step.tensors[4], step.integers[0], step.integers[2]};
    parallel(bags, 16, context.threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t last = i + 1 < given ? index_at(offsets, i + 1) : count;
        bag.fill(index_at(offsets, i), last, out.as<T>() + i * weight.dims[1]);
      }
    });
  });
  return true;
}

// The distance of two rows of n elements: a norm of order p of their difference.
template <class T>
T distance(const T* a, int64_t sa, const T* b, int64_t sb, int64_t n, double p) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double d = std::abs(static_cast<double>(a[i * sa]) - static_cast<double>(b[i * sb]));
    if (p == 0) {
      sum += d > 0 ? 1.0 : d;
    } else if (p == 1) {
      sum += d;
    } else if (p == 2) {
      sum += d * d;
    } else if (std::isinf(p)) {
      sum = d > sum ? d : sum;  // a NaN is left out
    } else {
      sum += std::pow(d, p);
    }
  }
  const bool itself = p == 0 || p == 1 || std::isinf(p);
  return static_cast<T>(itself ? sum : p == 2 ? std::sqrt(sum) : std::pow(sum, 1 / p));
}

bool distances(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1], &b = step.tensors[2];
  if (out.count() == 0) return true;
  const int64_t rows = out.dim(-2), columns = out.dim(-1), n = a.dim(-1);
  const int64_t grain = 1 + 8192 / (1 + columns * n);
  with_float(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel(out.count() / columns, grain, context.threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const T* one = a.as<const T>() + matrix_offset(a, out, i / rows) + i % rows * a.stride(-2);
        const T* other = b.as<const T>() + matrix_offset(b, out, i / rows);
        for (int64_t j = 0; j < columns; ++j) {
          out.as<T>()[i * columns + j] = distance(one, a.stride(-1), other + j * b.stride(-2),
                                                  b.stride(-1), n, step.numbers[0]);
        }
      }
    });
  });
  return true;
}

// Places of x in rows of sorted numbers.
bool searched(Check& c, int sorted, int x) {
  const bool right = c.operands(1, 3) && c.settings(2) && c.dtype(x, kTypes) &&
                     c.same_dtype(sorted, x) && c.dtype(0, kPlaces) && c.packed(0) &&
                     c.both_packed(sorted, x) && c.rank(sorted, 1) && c.count(0, c[x].count());
  return right && (c[sorted].rank == 1 || c.same_leading(sorted, x, 1));
}
bool in_buckets(Check& c) { return searched(c, 2, 1); }
bool in_sorted(Check& c) { return searched(c, 1, 2); }

bool in_bags(Check& c) {
  const bool right = c.operands(1, 5, 0b10000) && c.settings(3) && c.dtype(1, kWideFloats) &&
                     c.same_dtype(0, 1) && c.rank(1, 2, 2) && c.rank(0, 2, 2) && c.packed(0) &&
                     c.size(0, 1, c[1].dims[1]) && c.index(2) && c.index(3) && c.rank(3, 1, 1) &&
                     c.holds(c[0].dims[0] <= c[3].dims[0], "more bags than offsets", c[0].dims[0]);
  return right && (!c[4] || (c.same_dtype(4, 1) && c.rank(4, 1, 1) && c.size(4, 0, c[2].count())));
}

bool far_apart(Check& c) {
  const bool right = c.operands(1, 3) && c.settings(0, 1) && c.dtype(0, kWideFloats) &&
                     c.same_dtype(1, 0) && c.same_dtype(2, 0) && c.packed(0) && c.rank(0, 2) &&
                     c.rank(1, 2) && c.rank(2, 2);
  return right && c.size(1, -2, c[0].dim(-2)) && c.size(2, -2, c[0].dim(-1)) &&
         c.size(2, -1, c[1].dim(-1)) &&
         c.holds(batch_fits(c[1], c[0]) && batch_fits(c[2], c[0]), "shape of a batch");
}

}  // namespace

const Entry kSearches[] = {
    {"aten::bucketize.Tensor", bucketize, in_buckets},
    {"aten::searchsorted.Tensor", search_sorted, in_sorted},
    {"aten::_embedding_bag_forward_only", embedding_bag, in_bags},
    {"aten::_cdist_forward", distances, far_apart},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
