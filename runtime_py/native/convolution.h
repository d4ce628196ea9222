// Convolutions: patches of an input as columns of a matrix, which weights multiply.
#pragma once

#include <cstdint>

namespace kvc {

// An axis of a convolution: output o and tap t read the input at first + o * step + t * dilation,
// a zero where that lies outside.
struct WindowAxis {
  int64_t in, out, taps;
  int64_t first, step, dilation;
  int64_t stride;  // of the input, in elements
};

// The patches of some channels of one input: column j has the elements that output j reads,
// row k those of channel k / taps at tap k % taps. Taps and outputs are numbered in the order
// of the axes, the last one fastest.
struct Patches {
  const float* x;
  int64_t channel_stride;
  WindowAxis axes[3];

  int64_t taps() const { return axes[0].taps * axes[1].taps * axes[2].taps; }
  int64_t outputs() const { return axes[0].out * axes[1].out * axes[2].out; }
};

// Patches whose input lies in a copy with the zeros around it. The element of channel c at tap t
// for output (i, j, k) is x[c * channel_stride + offsets[t] + i * plane_step + j * line_step + k].
struct CopiedPatches {
  const float* x;
  int64_t channel_stride;
  const int64_t* offsets;
  int64_t taps;
  int64_t lines;  // of outputs in a plane of them
  int64_t plane_step, line_step;
  int64_t columns;  // outputs of a line
};

constexpr int64_t kPanelVectors = 3;  // registers of columns in a panel
constexpr int64_t kMostColumns = 48;  // of a panel of any instruction set

// Rows of weights times columns that lie in panels, one after the other: each [depth, width],
// of ProductKernels::panel columns, the last of as many vectors as hold the rest. Every sum
// begins with the bias and takes k in order, so that it does not depend on where it lies; sums of
// later k are added to those before.
struct PanelProduct {
  const float* w;  // [rows, depth]
  int64_t w_stride, w_step;  // of rows, and of k
  const float* panels;
  int64_t depth;
  const float* bias;  // of each row, or null
  bool more;          // whether `out` has the sums of k before
  float* out;         // [rows, columns]
  int64_t out_stride;
  int64_t rows, columns;
};

// Functions of single elements that end a convolution, the numbers of
// kvc.runtime.delegates.cpu.arguments.
enum class Activation : int64_t {
  kSilu = 0,
  kGelu = 1,
  kGeluTanh = 2,
  kIdentity = 3,
  kClamp = 4,  // between two bounds
  kSigmoid = 5,
  kHardSwish = 6,    // x * clamp(x + 3, 0, 6) / 6
  kHardSigmoid = 7,  // clamp(x + 3, 0, 6) / 6
};

struct Ending {
  Activation activation = Activation::kIdentity;
  float low = 0, high = 0;  // of kClamp; NaN where there is no bound
};

// Rows of one plane of a depthwise convolution. Output (i, j) is the bias and the sum over taps
// of w[t] * x[i * row_step + offsets[t] + j].
struct PlaneProduct {
  const float* x;
  int64_t row_step;
  const float* w;
  const int64_t* offsets;
  int64_t taps;
  float bias;
  float* out;  // [rows, columns], without gaps
  int64_t rows, columns;
};

// As many planes of a depthwise convolution as a register has lanes, whose elements lie without
// gaps. A lane is a channel.
struct LaneProduct {
  const float* x;
  int64_t channel_stride;
  const WindowAxis *lines, *inner;
  int64_t copied_lines, copied_columns;  // of the planes with zeros around them
  const float* w;                        // [channels, taps]
  const float* bias;                     // of each channel, or null
  Ending ending;
  float* out;      // [channels, lines, columns]
  float* scratch;  // [copied_lines * copied_columns + lines * columns + taps, channels]

  int64_t taps() const { return lines->taps * inner->taps; }
  int64_t size() const { return lines->out * inner->out; }
};

// Made for each instruction set, see products.h.
struct ConvolutionKernels {
  int64_t panel;  // columns of a panel
  // Rows `begin` to `end` of the patches, multiples of the taps of the last axis; columns `first`
  // to `first + columns` of them, as one panel.
  void (*pack)(const Patches& patches, int64_t begin, int64_t end, int64_t first, int64_t columns,
               float* to);
  // The first `depth` rows, as `pack`. Reads and writes whole vectors, so that as many elements
  // after the last of both must be there.
  void (*pack_copied)(const CopiedPatches& patches, int64_t depth, int64_t first, int64_t columns,
                      float* to);
  void (*panels)(const PanelProduct& product);
  // `count` lines of a plane, with zeros around it; of each line runs of `run` elements, those
  // that are a stride of `inner` apart side by side.
  void (*copy_plane)(const float* x, const WindowAxis& lines, const WindowAxis& inner, int64_t count,
                     int64_t run, float* to);
  void (*plane)(const PlaneProduct& product);
  int64_t lanes;  // planes of a LaneProduct
  void (*lane_planes)(const LaneProduct& product);
  // x = activation(x + residual); `residual` may be null.
  void (*finish)(const Ending& ending, const float* residual, int64_t n, float* x);
};

}  // namespace kvc
