// Norms of channels: by statistics that are given, or by those of groups of channels.
#include <algorithm>
#include <cmath>

#include "elements.h"
#include "kernels.h"
#include "lane_sums.h"
#include "products.h"
#include "types.h"

namespace kvc {
namespace {

// Elements of each channel that lie together.
int64_t inner_size(const Tensor& x) {
  int64_t product = 1;
  for (int i = 2; i < x.rank; ++i) product *= x.dims[i];
  return product;
}

template <class T>
T element(const Tensor& tensor, int64_t i, T otherwise) {
  return tensor ? tensor.as<const T>()[i] : otherwise;
}

void scale(const float* x, int64_t n, float factor, float offset, float* y) {
  product_kernels().line(x, n, factor, offset, y);
}

void scale(const double* x, int64_t n, double factor, double offset, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor + offset;
}

// x * factor + offset, a factor and an offset for each channel.
template <class T>
void scale_channels(const Tensor& out, const Tensor& x, const T* factors, const T* offsets, int threads) {
  const int64_t channels = x.dims[1], inner = inner_size(x);
  const bool flat = inner == 1;  // then channels lie side by side
  const int64_t rows = flat ? x.dims[0] : x.dims[0] * channels;
  const int64_t width = flat ? channels : inner;
  parallel(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width)), threads,
           [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = x.as<const T>() + row * width;
      T* to = out.as<T>() + row * width;
      if (flat) {
        for (int64_t i = 0; i < width; ++i) to[i] = from[i] * factors[i] + offsets[i];
      } else {
        scale(from, width, factors[row % channels], offsets[row % channels], to);
      }
    }
  });
}

// weight, bias, mean, variance.
bool batch_norm(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1];
  const Tensor &weight = step.tensors[2], &bias = step.tensors[3];
  const Tensor &mean = step.tensors[4], &variance = step.tensors[5];
  const int64_t channels = x.dims[1];
  void* memory = context.workspace(2 * channels * itemsize(x.dtype));
  if (memory == nullptr) return context.complete();
  with_float(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    T *factors = static_cast<T*>(memory), *offsets = factors + channels;
    const T eps = static_cast<T>(step.numbers[0]);
    for (int64_t i = 0; i < channels; ++i) {
      factors[i] = 1 / std::sqrt(variance.as<const T>()[i] + eps) * element<T>(weight, i, 1);
      offsets[i] = element<T>(bias, i, 0) - mean.as<const T>()[i] * factors[i];
    }
    scale_channels(out, x, factors, offsets, context.threads);
  });
  return true;
}

// The mean of elements, and the sum of squares of their distances from it.
struct Moments {
  double count, mean, squares;

  // Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
  // variances.
  void add(const Moments& other) {
    const double all = count + other.count, distance = other.mean - mean;
    squares += other.squares + distance * distance * count * other.count / all;
    mean += distance * other.count / all;
    count = all;
  }
};

Moments moments_of_piece(const float* x, int64_t n) {
  float mean, squares;
  product_kernels().moments(x, n, &mean, &squares);
  return {static_cast<double>(n), mean, squares};
}

Moments moments_of_piece(const double* x, int64_t n) {
  const double mean = piece_sum(x, n, [](double value) { return value; }) / static_cast<double>(n);
  const double squares = piece_sum(x, n, [mean](double value) { return (value - mean) * (value - mean); });
  return {static_cast<double>(n), mean, squares};
}

// The groups of a tensor: each is a run of channels of `inner` elements.
struct Groups {
  int64_t count, channels, inner;  // channels of each group

  int64_t size() const { return channels * inner; }
  int64_t pieces() const { return (size() + kPiece - 1) / kPiece; }
};

template <class T>
Moments moments_at(const T* group, const Groups& groups, int64_t piece) {
  return moments_of_piece(group + piece * kPiece, std::min(kPiece, groups.size() - piece * kPiece));
}

// Normalizes channel `channel` of all; the elements of `x` are those of the channel.
template <class T>
void normalize(const Step& step, const Groups& groups, int64_t channel, const Moments& moments) {
  const int64_t own = channel % step.tensors[1].dims[1];
  const T* x = step.tensors[1].as<const T>() + channel * groups.inner;
  T* y = step.tensors[0].as<T>() + channel * groups.inner;
  const double spread = 1 / std::sqrt(moments.squares / moments.count + step.numbers[0]);
  const T factor = static_cast<T>(spread) * element<T>(step.tensors[2], own, 1);
  const T offset = element<T>(step.tensors[3], own, 0) - static_cast<T>(moments.mean) * factor;
  scale(x, groups.inner, factor, offset, y);
}

// A thread reads a group and, as long as it is near, normalizes it.
template <class T>
void norm_whole_groups(const Step& step, const Groups& groups, int threads) {
  const int64_t grain = std::max<int64_t>(1, kGrain / groups.size());
  parallel(groups.count, grain, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t group = begin; group < end; ++group) {
      const T* x = step.tensors[1].as<const T>() + group * groups.size();
      Moments moments{};
      for (int64_t piece = 0; piece < groups.pieces(); ++piece) moments.add(moments_at(x, groups, piece));
      for (int64_t i = 0; i < groups.channels; ++i) {
        normalize<T>(step, groups, group * groups.channels + i, moments);
      }
    }
  });
}

// Threads share the pieces of groups, and then their channels; the same bits.
template <class T>
void norm_shared_groups(const Step& step, const Groups& groups, int threads, Moments* found) {
  const int64_t pieces = groups.pieces();
  parallel(groups.count * pieces, kGrain / kPiece, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const T* x = step.tensors[1].as<const T>() + i / pieces * groups.size();
      found[i] = moments_at(x, groups, i % pieces);
    }
  });
  for (int64_t group = 0; group < groups.count; ++group) {
    Moments moments{};
    for (int64_t piece = 0; piece < pieces; ++piece) moments.add(found[group * pieces + piece]);
    found[group] = moments;
  }
  const int64_t grain = std::max<int64_t>(1, kGrain / groups.inner);
  parallel(groups.count * groups.channels, grain, threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) normalize<T>(step, groups, i, found[i / groups.channels]);
  });
}

// The number of groups, weight, bias.
bool group_norm(const Step& step, const Context& context) {
  const Tensor& x = step.tensors[1];
  if (x.count() == 0) return true;
  const Groups groups{x.dims[0] * step.integers[0], x.dims[1] / step.integers[0], inner_size(x)};
  const bool shared = groups.count < context.threads && groups.pieces() > 1;
  Moments* found = nullptr;
  if (shared) {
    const size_t nbytes = groups.count * groups.pieces() * sizeof(Moments);
    found = static_cast<Moments*>(context.workspace(nbytes));
    if (found == nullptr) return context.complete();
  }
  with_float(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (shared) {
      norm_shared_groups<T>(step, groups, context.threads, found);
    } else {
      norm_whole_groups<T>(step, groups, context.threads);
    }
  });
  return true;
}

// x [batch, channels, ..], and vectors of the channels from operand 2 on.
bool normed(Check& c, int vectors, uint64_t optional) {
  const bool right = c.operands(1, 2 + vectors, optional) && c.dtype(1, kWideFloats) &&
                     c.alike(0, 1) && c.both_packed(0, 1) && c.rank(1, 2);
  if (!right) return false;
  for (int i = 2; i < 2 + vectors; ++i) {
    if (!c.vector_or_none(i, c[1].dims[1], only(c[1].dtype))) return false;
  }
  return true;
}
bool batch_normed(Check& c) { return c.settings(0, 1) && normed(c, 4, 0b001100); }
bool group_normed(Check& c) {
  return c.settings(1, 1) && normed(c, 2, 0b1100) && c.between(0, 1, kMostSetting) &&
         c.holds(c[1].dims[1] % c.integer(0) == 0, "channels of a group", c[1].dims[1],
                 c.integer(0));
}

}  // namespace

const Entry kChannelNorms[] = {
    {"aten::batch_norm", batch_norm, batch_normed},
    {"aten::group_norm", group_norm, group_normed},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
