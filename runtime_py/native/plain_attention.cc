// Attention without a cache that `kvc::attention` does not run: of float64, of any rank, causal
// with more queries than keys.
#include <algorithm>
#include <cmath>
#include <limits>

#include "family_contracts.h"
#include "kernels.h"
#include "pool.h"
#include "types.h"

namespace kvc {
namespace {

struct Attention {
  Tensor out, q, k, v, mask;
  bool causal;
  double scale;

  // Where the part of an operand begins that belongs to a part of the result, a matrix.
  // Operands are repeated along axes before these; heads may share one of keys.
  int64_t place(const Tensor& x, int64_t part) const {
    int64_t at = 0;
    for (int axis = out.rank - 3; axis >= 0; --axis) {
      const int64_t index = part % out.dims[axis], own = axis - (out.rank - x.rank);
      part /= out.dims[axis];
      if (own >= 0) at += index / (out.dims[axis] / x.dims[own]) * x.strides[own];
    }
    return at;
  }
};

// A row or column of an operand's matrix, 0 along an axis that is repeated.
int64_t step_of(const Tensor& x, int axis) {
  return -axis <= x.rank && x.dim(axis) != 1 ? x.stride(axis) : 0;
}

// Writes the weights of keys that query `row` of a part sees, and returns their sum; 0 where
// it sees none.
template <class T>
T weigh(const Attention& a, int64_t part, int64_t row, int64_t keys, T* weights) {
  const int64_t width = a.q.dim(-1), across = a.q.stride(-1), along = a.k.stride(-1);
  const T* q = a.q.as<const T>() + a.place(a.q, part) + row * a.q.stride(-2);
  const T* k = a.k.as<const T>() + a.place(a.k, part);
  const int64_t masked = a.mask ? a.place(a.mask, part) + row * step_of(a.mask, -2) : 0;
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  T most = kHidden;
  for (int64_t j = 0; j < keys; ++j, k += a.k.stride(-2)) {
    T score = 0;
    for (int64_t e = 0; e < width; ++e) score += q[e * across] * k[e * along];
    score *= static_cast<T>(a.scale);
    const int64_t at = masked + j * step_of(a.mask, -1);
    if (a.mask && a.mask.dtype == DType::kBool) {
      if (a.mask.as<const uint8_t>()[at] == 0) score = kHidden;
    } else if (a.mask) {
      score += a.mask.as<const T>()[at];
    }
    weights[j] = score;
    if (score > most || score != score) most = score;
  }
  if (most == kHidden) return 0;
  T sum = 0;
  for (int64_t j = 0; j < keys; ++j) sum += weights[j] = std::exp(weights[j] - most);
  return sum;
}

template <class T>
void attend(const Attention& a, int64_t index, T* weights) {
  const int64_t queries = a.out.dim(-2), values = a.out.dim(-1);
  const int64_t part = index / queries, row = index % queries;
  const int64_t keys = a.causal ? std::min(row + 1, a.k.dim(-2)) : a.k.dim(-2);
  const T sum = weigh(a, part, row, keys, weights);
  T* out = a.out.as<T>() + index * values;
  std::fill_n(out, values, T(0));
  if (sum == 0) return;
  const T* v = a.v.as<const T>() + a.place(a.v, part);
  for (int64_t j = 0; j < keys; ++j, v += a.v.stride(-2)) {
    for (int64_t e = 0; e < values; ++e) out[e] += weights[j] / sum * v[e * a.v.stride(-1)];
  }
}

bool attention(const Step& step, const Context& context) {
  const Tensor* t = step.tensors;
  const double given = step.numbers[0], width = static_cast<double>(t[1].dim(-1));
  const Attention a{t[0], t[1], t[2], t[3], t[4], step.integers[0] != 0,
                    given == given ? given : 1 / std::sqrt(width)};
  const int64_t values = a.out.dim(-1), keys = a.k.dim(-2);
  if (a.out.count() == 0) return true;
  const int64_t grain = 1 + 16384 / (1 + keys * (values + a.q.dim(-1)));
  with_float(a.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel(a.out.count() / values, grain, context.threads, [&](int64_t begin, int64_t end, int) {
      auto* weights = static_cast<T*>(context.workspace((keys + 1) * sizeof(T)));
      if (weights == nullptr) return;
      for (int64_t i = begin; i < end; ++i) attend(a, i, weights);
    });
  });
  return context.complete();
}

}  // namespace

const Entry kPlainAttention[] = {
    {"aten::scaled_dot_product_attention", attention, plainly_attended},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
