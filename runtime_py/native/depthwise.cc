// Depthwise convolutions: a plane of the input is copied with its padding, and taps multiply
// whole lines of it. Small planes are taken several at a time, see lane_planes.inc: lines
// would be too short for registers.
//
// Where the last axis has a stride s, the elements of a line that are s apart lie side by side
// in the copy, so that every tap reads a line without gaps.
#include "depthwise.h"

#include <algorithm>

#include "pool.h"
#include "products.h"

namespace kvc {
namespace {

constexpr int64_t kMostTaps = 1024;  // of a kernel that is made here
constexpr int64_t kSlack = 32;       // elements after a plane, which vectors may read
constexpr int64_t kRowsTogether = 4;  // which stay in the nearest cache until they are finished
constexpr int64_t kMostPhases = 16;  // strides of the last axis
constexpr int64_t kMostElements = int64_t{1} << 31;  // of the copy of a plane
constexpr int64_t kSmallPlane = 1024;  // elements of a plane that is taken with others
constexpr int kPlaneSlot = 0, kOffsetSlot = 1;

// The copy of a plane: lines of `phases` runs of `run` elements.
struct Plane {
  int64_t lines, phases, run;

  int64_t line() const { return phases * run; }
  size_t nbytes() const { return (lines * line() + kSlack) * sizeof(float); }
};

// How many elements an axis has with the zeros around it.
int64_t reach_of(const WindowAxis& axis) {
  return (axis.out - 1) * axis.step + (axis.taps - 1) * axis.dilation + 1;
}

Plane plane_of(const Patches& patches) {
  const WindowAxis &middle = patches.axes[1], &inner = patches.axes[2];
  const int64_t reach = (inner.taps - 1) * inner.dilation / inner.step;
  return {reach_of(middle), inner.step, inner.out + reach};
}

void find_offsets(const Patches& patches, const Plane& plane, int64_t* offsets) {
  const WindowAxis &middle = patches.axes[1], &inner = patches.axes[2];
  for (int64_t b = 0; b < middle.taps; ++b) {
    for (int64_t c = 0; c < inner.taps; ++c) {
      const int64_t place = c * inner.dilation;
      *offsets++ = b * middle.dilation * plane.line() + place % plane.phases * plane.run +
                   place / plane.phases;
    }
  }
}

// A plane of the result, some rows after the others.
void make_plane(const DepthwiseConvolution& c, PlaneProduct product, const float* residual) {
  const auto& kernels = product_kernels().convolution;
  for (int64_t left = product.rows; left > 0; left -= product.rows) {
    product.rows = std::min(left, kRowsTogether);
    const int64_t n = product.rows * product.columns;
    kernels.plane(product);
    kernels.finish(c.ending, residual, n, product.out);
    product.x += product.rows * product.row_step;
    product.out += n;
    residual = residual != nullptr ? residual + n : nullptr;
  }
}

// Whether planes are taken several at a time.
bool takes_lanes(const DepthwiseConvolution& c) {
  const WindowAxis &outer = c.patches.axes[0], &lines = c.patches.axes[1], &inner = c.patches.axes[2];
  const bool whole = (inner.stride == 1 || inner.in == 1) && (lines.stride == inner.in || lines.in == 1);
  if (!whole || outer.out != 1 || c.multiplier != 1 || c.residual != nullptr) return false;
  return lines.in * inner.in <= kSmallPlane && lines.out * inner.out <= kSmallPlane &&
         reach_of(lines) * reach_of(inner) <= 4 * kSmallPlane;
}

// Channels `first` and following of an image, as many as there are lanes.
bool make_lanes(const DepthwiseConvolution& c, int64_t image, int64_t first, const Context& context) {
  const auto& kernels = product_kernels().convolution;
  const WindowAxis &lines = c.patches.axes[1], &inner = c.patches.axes[2];
  const int64_t taps = c.patches.taps(), size = lines.out * inner.out;
  LaneProduct product{c.patches.x + image * c.image_stride + first * c.patches.channel_stride,
                      c.patches.channel_stride,
                      &lines,
                      &inner,
                      reach_of(lines),
                      reach_of(inner),
                      c.w + first * taps,
                      c.bias != nullptr ? c.bias + first : nullptr,
                      c.ending,
                      c.out.as<float>() + (image * c.channels + first) * size,
                      nullptr};
  const int64_t places = product.copied_lines * product.copied_columns + size + taps;
  product.scratch = static_cast<float*>(
      context.workspace(places * kernels.lanes * sizeof(float), kPlaneSlot));
  if (product.scratch == nullptr) return false;
  kernels.lane_planes(product);
  return true;
}

}  // namespace

bool is_depthwise(int64_t inputs, const Patches& patches) {
  const WindowAxis& outer = patches.axes[0];
  if (inputs != 1 || outer.taps != 1 || outer.first != 0 || outer.step != 1) return false;
  if (patches.axes[2].step > kMostPhases || patches.taps() > kMostTaps) return false;
  const Plane plane = plane_of(patches);
  return plane.run <= kMostElements / kMostPhases && plane.lines <= kMostElements / plane.line();
}

bool convolve_planes(const DepthwiseConvolution& c, const Context& context) {
  const auto& kernels = product_kernels().convolution;
  const Patches& patches = c.patches;
  const WindowAxis &outer = patches.axes[0], &middle = patches.axes[1], &inner = patches.axes[2];
  const Plane plane = plane_of(patches);
  const int64_t taps = patches.taps(), size = middle.out * inner.out;
  auto* offsets = static_cast<int64_t*>(context.workspace(taps * sizeof(int64_t), kOffsetSlot));
  if (offsets == nullptr) return context.complete();
  find_offsets(patches, plane, offsets);
  const int64_t lanes = takes_lanes(c) ? kernels.lanes : 1, groups = c.channels / lanes;
  if (lanes > 1) {
    parallel(c.images * groups, 1, context.threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        if (!make_lanes(c, i / groups, i % groups * lanes, context)) return;
      }
    });
  }
  const int64_t inputs = c.channels / c.multiplier, done = lanes > 1 ? groups * lanes : 0;
  const int64_t left = inputs - done, planes = c.images * left * outer.out;
  parallel(planes, 1 + 16384 / (size * taps + 1), context.threads, [&](int64_t begin, int64_t end, int) {
    auto* copy = static_cast<float*>(context.workspace(plane.nbytes(), kPlaneSlot));
    for (int64_t i = begin; copy != nullptr && i < end; ++i) {
      const int64_t slice = i % outer.out, channel = done + i / outer.out % left;
      const int64_t image = i / outer.out / left;
      const float* x = patches.x + image * c.image_stride + channel * patches.channel_stride;
      kernels.copy_plane(x + slice * outer.stride, middle, inner, plane.lines, plane.run, copy);
      std::fill_n(copy + plane.lines * plane.line(), kSlack, 0.0f);
      for (int64_t k = 0; k < c.multiplier; ++k) {
        const int64_t own = channel * c.multiplier + k;
        const int64_t at = ((image * c.channels + own) * outer.out + slice) * size;
        make_plane(c, {copy, middle.step * plane.line(), c.w + own * taps, offsets, taps,
                       c.bias != nullptr ? c.bias[own] : 0, c.out.as<float>() + at, middle.out,
                       inner.out},
                   c.residual != nullptr ? c.residual + at : nullptr);
      }
    }
  });
  return context.complete();
}

}  // namespace kvc
