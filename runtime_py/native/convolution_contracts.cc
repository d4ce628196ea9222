// Contracts of convolutions, whose settings are lists of numbers for each axis.
#include <algorithm>

#include "convolutions.h"
#include "family_contracts.h"
#include "kernels.h"

namespace kvc {
namespace {

// The operands of a convolution, as `read_operands` has them.
struct Operands {
  int x = 1, w = 2, scale = -1, bias = 3, rest = 4;

  explicit Operands(bool int8) {
    if (int8) scale = 3, bias = 4, rest = 5;
  }
};

bool read_settings(Check& c, int64_t* at, int count, int axes, int64_t least,
                   const int64_t** found) {
  for (int i = 0; i < count; ++i) {
    found[i] = c.step.integers + *at + 1;
    if (!c.list(at, axes, axes)) return false;
    for (int axis = 0; axis < axes; ++axis) {
      const int64_t given = found[i][axis];
      if (!c.holds(given >= least && given <= kMostSetting, "a setting of a convolution", axis,
                   given))
        return false;
    }
  }
  return true;
}

// The input and the weights, of `axes` axes each; int8 weights with scales of `channels`.
bool operands_fit(Check& c, const Operands& o, int64_t channels, bool only_floats) {
  const DTypes dtypes = only_floats || o.scale > 0 ? kFloat : kTypes;
  const bool right = c.dtype(o.x, dtypes) && c.same_dtype(0, o.x) && c.rank(o.x, 3, 2 + kAxes) &&
                     c.rank(o.w, c[o.x].rank, c[o.x].rank) && c.rank(0, c[o.x].rank, c[o.x].rank) &&
                     c.size(0, 0, c[o.x].dims[0]) && c.size(0, 1, channels) && c.packed(o.w) &&
                     c.packed(0) && c.vector_or_none(o.bias, channels, only(c[o.x].dtype));
  if (!right) return false;
  for (int i = 2; i < c[o.w].rank; ++i) {
    if (!c.holds(c[o.w].dims[i] > 0, "a kernel without elements", i)) return false;
  }
  if (o.scale < 0) return c.same_dtype(o.w, o.x);
  return c.dtype(o.w, only(DType::kInt8)) && c.vector_or_none(o.scale, channels, kFloat);
}

// The size of an axis of the result follows from settings.
bool ordinary_size(Check& c, int64_t in, int64_t out, int64_t taps, int64_t stride, int64_t padding,
                   int64_t dilation) {
  const int64_t room = in + 2 * padding - bounded_product(dilation, taps - 1) - 1;
  const int64_t expected = room < 0 ? 0 : room / stride + 1;
  return c.holds(out == expected, "size of a result", out, expected);
}

bool of_groups(Check& c, int64_t groups, int64_t inputs, int64_t outputs) {
  return c.holds(groups >= 1 && inputs % groups == 0 && outputs % groups == 0, "groups of channels",
                 groups, inputs);
}

// Integers: stride, padding, dilation, groups; *at becomes what follows.
bool ordinary(Check& c, bool int8, bool only_floats, int64_t* at) {
  const Operands o(int8);
  const int64_t *strides, *others[2];
  if (!c.rank(o.x, 3, 2 + kAxes) || !c.rank(o.w, 3, 2 + kAxes) || !c.rank(0, 3, 2 + kAxes))
    return false;
  if (!operands_fit(c, o, c[o.w].dims[0], only_floats)) return false;
  const int axes = c[o.x].rank - 2;
  if (!read_settings(c, at, 1, axes, 1, &strides) || !read_settings(c, at, 1, axes, 0, others) ||
      !read_settings(c, at, 1, axes, 1, others + 1) || !c.settings(*at + 1)) {
    return false;
  }
  const int64_t groups = c.integer((*at)++);
  if (!of_groups(c, groups, c[o.x].dims[1], c[o.w].dims[0])) return false;
  if (!c.size(o.w, 1, c[o.x].dims[1] / groups)) return false;
  for (int i = 0; i < axes; ++i) {
    const bool sized = ordinary_size(c, c[o.x].dims[2 + i], c[0].dims[2 + i], c[o.w].dims[2 + i],
                                     strides[i], others[0][i], others[1][i]);
    if (!sized) return false;
  }
  return true;
}

bool ending(Check& c, int64_t at) {
  constexpr auto kLast = static_cast<int64_t>(Activation::kHardSigmoid);
  return c.between(at, 0, kLast);
}

bool ended(Check& c, bool int8) {
  const Operands o(int8);
  const uint64_t optional = uint64_t{1} << o.bias | uint64_t{1} << o.rest;
  int64_t at = 0;
  if (!c.operands(1, o.rest + 1, optional) || !ordinary(c, int8, true, &at)) return false;
  if (!c.settings(at + 1, 2) || !ending(c, at)) return false;
  return !c[o.rest] || (c.dtype(o.rest, kFloat) && c.same_shape(o.rest, 0) && c.packed(o.rest));
}

// Integers: stride, padding, what is added to the result, groups, dilation.
bool transposed(Check& c, bool int8) {
  const Operands o(int8);
  int64_t at = 0;
  const int64_t *strides, *others[2], *dilations;
  if (!c.operands(1, o.rest, uint64_t{1} << o.bias)) return false;
  if (!c.rank(o.x, 3, 2 + kAxes) || !c.rank(0, c[o.x].rank, c[o.x].rank)) return false;
  if (!operands_fit(c, o, c[0].dims[1], false)) return false;
  const int axes = c[o.x].rank - 2;
  if (!read_settings(c, &at, 1, axes, 1, &strides) || !read_settings(c, &at, 2, axes, 0, others))
    return false;
  if (!c.settings(at + 1)) return false;
  const int64_t groups = c.integer(at++);
  if (!read_settings(c, &at, 1, axes, 1, &dilations)) return false;
  const bool grouped = of_groups(c, groups, c[o.x].dims[1], c[0].dims[1]) &&
                       c.size(o.w, 0, c[o.x].dims[1]) && c.size(o.w, 1, c[0].dims[1] / groups);
  for (int i = 0; grouped && i < axes; ++i) {
    const int64_t reach = bounded_product(dilations[i], c[o.w].dims[2 + i] - 1);
    const int64_t spread = bounded_product(c[o.x].dims[2 + i] - 1, strides[i]);
    if (!c.holds(c[o.x].dims[2 + i] > 0 && std::max(reach, spread) <= kMostProduct,
                 "size of an axis", i))
      return false;
    const int64_t expected = spread - 2 * others[0][i] + reach + others[1][i] + 1;
    if (!c.size(0, 2 + i, expected)) return false;
  }
  return grouped;
}

// Integers: what ends the first, then stride, padding and dilation of the second, and its end.
bool twice(Check& c, bool int8) {
  const Operands o(int8);
  const int second = o.rest, bias = second + 1;
  int64_t at = 1;
  const int64_t *strides, *others[2];
  const uint64_t optional = uint64_t{1} << o.bias | uint64_t{1} << bias;
  if (!c.operands(1, bias + 1, optional) || !c.settings(1, 4) || !ending(c, 0)) return false;
  if (!c.rank(o.x, 3, 2 + kAxes) || !c.rank(second, c[o.x].rank, c[o.x].rank)) return false;
  const int64_t channels = c[second].dims[0];
  if (!operands_fit(c, o, channels, true) || !c.size(o.w, 0, channels) ||
      !c.size(o.w, 1, c[o.x].dims[1]))
    return false;
  const int axes = c[o.x].rank - 2;
  if (!read_settings(c, &at, 1, axes, 1, &strides) || !read_settings(c, &at, 1, axes, 0, others) ||
      !read_settings(c, &at, 1, axes, 1, others + 1) || !c.settings(at + 1, 4) || !ending(c, at)) {
    return false;
  }
  const bool right = c.dtype(second, kFloat) && c.packed(second) && c.size(second, 1, 1) &&
                     c.vector_or_none(bias, channels, kFloat);
  for (int i = 2; right && i < 2 + axes; ++i) {
    const bool sized = c.size(o.w, i, 1) &&
                       c.holds(c[second].dims[i] > 0, "a kernel without elements", i) &&
                       ordinary_size(c, c[o.x].dims[i], c[0].dims[i], c[second].dims[i],
                                     strides[i - 2], others[0][i - 2], others[1][i - 2]);
    if (!sized) return false;
  }
  return right;
}

}  // namespace

bool convolved(Check& c) {
  int64_t at = 0;
  return c.operands(1, 4, 0b1000) && ordinary(c, false, false, &at);
}
bool convolved_and_ended(Check& c) { return ended(c, false); }
bool convolved_with_int8(Check& c) { return ended(c, true); }
bool transposed_convolved(Check& c) { return transposed(c, false); }
bool transposed_convolved_with_int8(Check& c) { return transposed(c, true); }
bool convolved_twice(Check& c) { return twice(c, false); }
bool convolved_twice_with_int8(Check& c) { return twice(c, true); }

}  // namespace kvc
