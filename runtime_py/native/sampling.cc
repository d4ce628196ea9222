// Sampling of planes at the points of a grid: as sums of a few elements with weights.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "elements.h"
#include "kernels.h"
#include "types.h"

namespace kvc {
namespace {

constexpr int64_t kPoints = 64;  // whose elements and weights are found at once
constexpr int kMostTaps = 16;

enum Mode : int64_t { kLinear = 0, kNearest = 1, kCubic = 2 };
enum Padding : int64_t { kZeros = 0, kBorder = 1, kReflection = 2 };

// Two axes and three differ in what becomes of NaN, and in how they round.
template <class T, int kRank>
struct Sampling {
  Mode mode;
  Padding padding;
  bool corners;

  // A coordinate from -1 to 1 as a position along an axis.
  T position(T at, int64_t count) const {
    const T size = static_cast<T>(count);
    if (kRank == 2) return corners ? (at + 1) * ((size - 1) / 2) : (at + 1) * (size / 2) - T(0.5);
    return corners ? (at + 1) / 2 * (size - 1) : ((at + 1) * size - 1) / 2;
  }

  // A position outside, moved inside; not with zeros as padding.
  T inside(T at, int64_t count) const {
    if (padding == kZeros) return at;
    if (padding == kReflection) at = reflected(at, static_cast<T>(count));
    const T last = static_cast<T>(count - 1);
    if (at != at) return kRank == 2 ? T(0) : last;
    return std::min(last, std::max(at, T(0)));
  }

  T reflected(T at, T size) const {
    const T low = corners ? T(0) : T(-0.5), span = corners ? size - 1 : size;
    if (span == 0) return 0;
    const T distance = std::abs(at - low), twice = 2 * span;
    if (kRank == 3) {
      // Far away, where the number of turns is no int32, it counts as even.
      const T turns = std::floor(distance / span), rest = std::fmod(distance, span);
      const bool turned = turns < T(0x1p31) && std::fmod(turns, T(2)) == 1;
      return (turned ? span - rest : rest) + low;
    }
    const T rest = distance - std::trunc(distance / twice) * twice;
    return (rest > span ? twice - rest : rest) + low;
  }
};

// What one axis has to do with a point: positions, -1 where there are none, and weights.
template <class T>
struct Taps {
  int count;
  int64_t places[4];
  T weights[4];

  void set(int i, T place, int64_t size, T weight) {
    places[i] = place >= 0 && place < static_cast<T>(size) ? static_cast<int64_t>(place) : -1;
    weights[i] = weight;
  }
};

// Keys: Cubic convolution interpolation for digital image processing, with a = -3/4.
template <class T>
void cubic_weights(T t, T (&weights)[4]) {
  const T a = T(-0.75);
  const auto near = [a](T x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [a](T x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  weights[0] = far(t + 1);
  weights[1] = near(t);
  weights[2] = near(1 - t);
  weights[3] = far(2 - t);
}

template <class T, int kRank>
Taps<T> taps_at(const Sampling<T, kRank>& sampling, T coordinate, int64_t size) {
  Taps<T> taps;
  const T raw = sampling.position(coordinate, size);
  if (sampling.mode == kNearest) {
    taps.count = 1;
    taps.set(0, std::nearbyint(sampling.inside(raw, size)), size, 1);
  } else if (sampling.mode == kLinear) {
    const T at = sampling.inside(raw, size), low = std::floor(at);
    taps.count = 2;
    taps.set(0, low, size, 1 - (at - low));
    taps.set(1, low + 1, size, at - low);
  } else {
    const T low = std::floor(raw);
    T weights[4];
    cubic_weights(raw - low, weights);
    taps.count = 4;
    for (int i = 0; i < 4; ++i) {
      taps.set(i, sampling.inside(low + static_cast<T>(i - 1), size), size, weights[i]);
    }
  }
  return taps;
}

// The elements and the weights of several points: [taps, points].
template <class T>
struct Table {
  using Flag = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

  int taps = 0;
  int64_t places[kMostTaps][kPoints];  // 0 for elements outside, which count as 0
  Flag outside[kMostTaps][kPoints];    // as wide as an element
  T weights[kMostTaps][kPoints];
};

// Fills in point `point`; coordinates of a grid begin with the last axis.
template <class T, int kRank>
void add_point(const Sampling<T, kRank>& sampling, const Tensor& x, const T* coordinates, int64_t point,
               Table<T>& table) {
  int64_t places[kMostTaps] = {0};
  T weights[kMostTaps] = {1};
  int count = 1;
  for (int axis = 0; axis < kRank; ++axis) {
    const int64_t size = x.dim(axis - kRank);
    const Taps<T> own = taps_at(sampling, coordinates[kRank - 1 - axis], size);
    // Backwards, since what is read is written over.
    for (int i = count * own.count - 1; i >= 0; --i) {
      const int64_t outer = places[i / own.count], inner = own.places[i % own.count];
      places[i] = outer < 0 || inner < 0 ? -1 : outer * size + inner;
      weights[i] = weights[i / own.count] * own.weights[i % own.count];
    }
    count *= own.count;
  }
  table.taps = count;
  for (int i = 0; i < count; ++i) {
    // A weight may be NaN; only over two axes it counts for elements outside.
    table.places[i][point] = std::max<int64_t>(places[i], 0);
    table.outside[i][point] = places[i] < 0;
    table.weights[i][point] = kRank == 3 && places[i] < 0 ? T(0) : weights[i];
  }
}

// One tap after the other; points lie side by side.
template <class T>
void sample(const Table<T>& table, const T* x, int64_t points, T* y) {
  for (int tap = 0; tap < table.taps; ++tap) {
    const int64_t* places = table.places[tap];
    const auto* outside = table.outside[tap];
    const T* weights = table.weights[tap];
    T found[kPoints];
    for (int64_t i = 0; i < points; ++i) found[i] = x[places[i]];
    for (int64_t i = 0; i < points; ++i) found[i] = (outside[i] ? T(0) : found[i]) * weights[i];
    if (tap == 0) {
      std::copy(found, found + points, y);
    } else {
      for (int64_t i = 0; i < points; ++i) y[i] += found[i];
    }
  }
}

template <class T, int kRank>
void sample_all(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &x = step.tensors[1], &grid = step.tensors[2];
  const Sampling<T, kRank> sampling{Mode(step.integers[0]), Padding(step.integers[1]), step.integers[2] != 0};
  const int64_t batch = x.dims[0], channels = x.dims[1], plane = x.count() / (batch * channels);
  const int64_t points = out.count() / (batch * channels), pieces = (points + kPoints - 1) / kPoints;
  const int64_t work = kPoints * channels * (1 << kRank);
  parallel(batch * pieces, std::max<int64_t>(1, kGrain / work), context.threads,
           [&](int64_t begin, int64_t end, int) {
    Table<T> table;
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t image = piece / pieces, first = piece % pieces * kPoints;
      const int64_t count = std::min(kPoints, points - first);
      const T* coordinates = grid.as<const T>() + (image * points + first) * kRank;
      for (int64_t i = 0; i < count; ++i) add_point(sampling, x, coordinates + i * kRank, i, table);
      for (int64_t channel = image * channels; channel < (image + 1) * channels; ++channel) {
        sample(table, x.as<const T>() + channel * plane, count, out.as<T>() + channel * points + first);
      }
    }
  });
}

// The grid, the mode, the padding, whether -1 and 1 are the centers of corners.
template <int kRank>
bool grid_sampler(const Step& step, const Context& context) {
  if (step.tensors[0].count() == 0) return true;
  with_float(step.tensors[1].dtype, [&](auto zero) { sample_all<decltype(zero), kRank>(step, context); });
  return true;
}

// x [batch, channels, ..] at the points of a grid [batch, .., axes].
template <int kRank>
bool sampled(Check& c) {
  const bool right =
      c.operands(1, 3) && c.settings(3) && c.dtype(1, kWideFloats) && c.same_dtype(0, 1) &&
      c.same_dtype(2, 1) && c.rank(0, kRank + 2, kRank + 2) && c.same_leading(1, 0, kRank) &&
      c.packed(0) && c.both_packed(1, 2) && c.rank(2, kRank + 2, kRank + 2) &&
      c.size(2, 0, c[0].dims[0]) && c.size(2, -1, kRank) &&
      c.between(0, kLinear, kRank == 2 ? kCubic : kNearest) && c.between(1, kZeros, kReflection);
  // Positions are floats, which have all integers up to this.
  constexpr int64_t kMostSize = int64_t{1} << 24;
  for (int i = 0; right && i < kRank; ++i) {
    if (!c.size(2, 1 + i, c[0].dims[2 + i])) return false;
    if (!c.holds(c[1].dims[2 + i] <= kMostSize, "an axis too long", c[1].dims[2 + i])) return false;
  }
  return right && c.holds(c[0].count() == 0 || c[1].count() != 0, "an operand without elements", 1);
}

}  // namespace

const Entry kSampling[] = {
    {"aten::grid_sampler_2d", grid_sampler<2>, sampled<2>},
    {"aten::grid_sampler_3d", grid_sampler<3>, sampled<3>},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
