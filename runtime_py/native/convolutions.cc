// Convolutions of float32 over one, two or three axes, ordinary and transposed.
//
// Outputs are taken some panels at a time: their patches are packed side by side, and all rows
// of weights multiply them (Goto and van de Geijn, 2008, with the patches packed as they are
// needed). A transposed convolution with stride s is s ordinary ones along each axis, whose
// outputs lie s apart.
#include <algorithm>
#include <numeric>

#include "convolution.h"
#include "depthwise.h"
#include "kernels.h"
#include "plain_convolutions.h"
#include "pool.h"
#include "products.h"

namespace kvc {
namespace {

constexpr int kAxes = 3;
constexpr int64_t kDepthTogether = 256;  // rows of panels that are packed at a time
constexpr int64_t kPanelsTogether = 4;
constexpr int64_t kRowsTogether = 8;
constexpr int kPanelSlot = 0, kWeightSlot = 1, kSumSlot = 2;  // of workspaces

// What a convolution is told about its axes.
struct Settings {
  int64_t stride[kAxes], padding[kAxes], dilation[kAxes];
  int64_t groups;
};

// Where the outputs of an axis, and the taps of its kernel, lie among all of them.
struct Selection {
  int64_t first_output, output_step, first_tap, tap_step;
};

struct Convolution {
  Tensor out, x, w;
  const float* bias;
  const float* residual;  // of the shape of the result, or null
  Ending ending;
  Settings settings;

  int spatial() const { return x.rank - 2; }
  int64_t images() const { return x.dims[0]; }
  int64_t inputs() const { return x.dims[1] / settings.groups; }  // channels of a group
  int64_t outputs() const { return out.dims[1] / settings.groups; }
  int64_t plane() const {  // elements of a channel of the result
    int64_t product = 1;
    for (int i = 2; i < out.rank; ++i) product *= out.dims[i];
    return product;
  }
};

// The axes of an ordinary convolution. Leading ones that are not there have one element.
void find_axes(const Convolution& c, WindowAxis (&axes)[kAxes]) {
  const int missing = kAxes - c.spatial();
  for (int i = 0; i < kAxes; ++i) {
    axes[i] = WindowAxis{1, 1, 1, 0, 1, 1, 0};
    if (i < missing) continue;
    const int axis = 2 + i - missing, own = i - missing;
    axes[i] = WindowAxis{c.x.dims[axis],
                         c.out.dims[axis],
                         c.w.dims[axis],
                         -c.settings.padding[own],
                         c.settings.stride[own],
                         c.settings.dilation[own],
                         c.x.strides[axis]};
  }
}

bool reads_as_it_lies(const WindowAxis& axis) {
  return axis.taps == 1 && axis.first == 0 && axis.step == 1 && axis.in == axis.out;
}

// Makes one axis of the last two, and of all three, where outputs read what lies side by side:
// lines become longer, and more of them fit into a panel.
void merge_axes(WindowAxis (&axes)[kAxes]) {
  for (int i = 0; i < 2; ++i) {
    WindowAxis &outer = axes[1], &inner = axes[2];
    const bool together = outer.in == 1 || outer.stride == inner.stride * inner.in;
    if (!reads_as_it_lies(outer) || !reads_as_it_lies(inner) || !together) return;
    inner.in *= outer.in;
    inner.out *= outer.out;
    axes[1] = axes[0];
    axes[0] = WindowAxis{1, 1, 1, 0, 1, 1, 0};
  }
}

// Some of the outputs of a convolution: all, or every so many of a transposed one.
struct Part {
  Patches patches;  // of the first image and channel
  const float* w;   // [outputs of all groups, depth]
  int64_t depth;
  bool scattered;  // whether outputs lie apart, as `selections` have them
  Selection selections[kAxes];
};

// Where a line of outputs of the last axis begins in a plane of the result.
int64_t line_of(const Convolution& c, const Part& part, int64_t line) {
  const int missing = kAxes - c.spatial();
  const int64_t middle = part.patches.axes[1].out;
  const int64_t places[2] = {line / middle, line % middle};
  int64_t at = 0;
  for (int i = 0; i < kAxes; ++i) {
    if (i < missing) continue;
    const Selection& own = part.selections[i];
    const int64_t place = i < 2 ? own.first_output + places[i] * own.output_step : own.first_output;
    at = at * c.out.dims[2 + i - missing] + place;
  }
  return at;
}

// Writes sums of outputs `first` and following, of one row, to where they lie in a plane.
void scatter(const Convolution& c, const Part& part, const float* sums, int64_t first,
             int64_t count, float* plane) {
  const int64_t width = part.patches.axes[2].out, step = part.selections[2].output_step;
  while (count > 0) {
    const int64_t place = first % width, n = std::min(width - place, count);
    float* to = plane + line_of(c, part, first / width) + place * step;
    for (int64_t i = 0; i < n; ++i) to[i * step] = sums[i];
    first += n;
    sums += n;
    count -= n;
  }
}

// A piece of the work on a part: outputs `first` and following of one image, rows `begin` to
// `end` of the weights of one group.
struct Piece {
  int64_t image, group, first, count, begin, end;
};

// Sums over all patches; false where a thread has no memory.
bool multiply_piece(const Convolution& c, const Part& part, const Piece& piece,
                    const Context& context) {
  const auto& kernels = product_kernels().convolution;
  const int64_t plane = c.plane(), row = piece.group * c.outputs() + piece.begin;
  const int64_t width = (piece.count + kernels.panel - 1) / kernels.panel * kernels.panel;
  // At least one, so that sums of nothing end, too.
  const int64_t together = std::max<int64_t>(1, std::min(part.depth, kDepthTogether));
  auto* packed =
      static_cast<float*>(context.workspace(width * together * sizeof(float), kPanelSlot));
  if (packed == nullptr) return false;
  const int64_t rows = piece.end - piece.begin;
  float* planes = c.out.as<float>() + (piece.image * c.out.dims[1] + row) * plane;
  float* sums = planes + piece.first;
  if (part.scattered) {
    sums = static_cast<float*>(context.workspace(rows * piece.count * sizeof(float), kSumSlot));
    if (sums == nullptr) return false;
  }
  PanelProduct product{part.w + row * part.depth,
                       part.depth,
                       packed,
                       0,
                       c.bias != nullptr ? c.bias + row : nullptr,
                       false,
                       sums,
                       part.scattered ? piece.count : plane,
                       rows,
                       piece.count};
  Patches patches = part.patches;
  patches.x += piece.image * c.x.strides[0] + piece.group * c.inputs() * patches.channel_stride;
  for (int64_t k = 0; k == 0 || k < part.depth; k += together) {
    product.depth = std::min(together, part.depth - k);
    float* to = packed;
    for (int64_t at = 0; at < piece.count; at += kernels.panel, to += kernels.panel * product.depth) {
      kernels.pack(patches, k, k + product.depth, piece.first + at,
                   std::min(kernels.panel, piece.count - at), to);
    }
    kernels.panels(product);
    product.w += product.depth;
    product.more = true;
  }
  for (int64_t i = 0; i < rows; ++i) {
    float* made = sums + i * product.out_stride;
    const float* residual = c.residual == nullptr ? nullptr : c.residual + (made - c.out.as<float>());
    kernels.finish(c.ending, residual, piece.count, made);
    if (part.scattered) scatter(c, part, made, piece.first, piece.count, planes + i * plane);
  }
  return true;
}

int64_t pieces_of(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

bool multiply(const Convolution& c, const Part& part, const Context& context) {
  const int64_t panel = product_kernels().convolution.panel, outputs = part.patches.outputs();
  if (outputs == 0) return true;
  const int64_t planes = c.images() * c.settings.groups, wanted = 4 * context.threads;
  int64_t together = kPanelsTogether * panel, rows = c.outputs();
  while (together > panel && planes * pieces_of(outputs, together) < wanted) together -= panel;
  const int64_t blocks = pieces_of(outputs, together);
  if (planes * blocks < context.threads) {
    const int64_t parts = pieces_of(context.threads, planes * blocks);
    rows = pieces_of(pieces_of(rows, parts), kRowsTogether) * kRowsTogether;
  }
  const int64_t splits = pieces_of(c.outputs(), rows);
  parallel(planes * blocks * splits, 1, context.threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t split = i % splits, block = i / splits % blocks, own = i / splits / blocks;
      const int64_t first = block * together;
      const Piece piece{own / c.settings.groups,
                        own % c.settings.groups,
                        first,
                        std::min(together, outputs - first),
                        split * rows,
                        std::min(c.outputs(), (split + 1) * rows)};
      if (!multiply_piece(c, part, piece, context)) return;
    }
  });
  return context.complete();
}

bool ordinary(const Convolution& c, const Context& context) {
  Part part{};
  part.patches = Patches{c.x.as<const float>(), c.x.strides[1], {}};
  find_axes(c, part.patches.axes);
  if (is_depthwise(c.inputs(), part.patches)) {
    return convolve_planes({c.out, part.patches, c.w.as<const float>(), c.bias, c.residual,
                            c.ending, c.x.strides[0], c.images(), c.out.dims[1], c.outputs()},
                           context);
  }
  merge_axes(part.patches.axes);
  part.w = c.w.as<const float>();
  part.depth = c.inputs() * part.patches.taps();
  return multiply(c, part, context);
}

// The outputs of a transposed convolution along one axis that are `phase` after a multiple of
// the stride: those of an ordinary convolution with every so many of the taps.
WindowAxis transposed_axis(const Convolution& c, int own, int64_t phase, Selection* selection) {
  const int axis = own + 2;
  const int64_t stride = c.settings.stride[own], dilation = c.settings.dilation[own];
  const int64_t common = std::gcd(stride, dilation), at = phase + c.settings.padding[own];
  const int64_t taps = c.w.dims[axis];
  *selection = Selection{phase, stride, 0, stride / common};
  int64_t tap = 0;
  while (tap < taps && (at - tap * dilation) % stride != 0) ++tap;
  selection->first_tap = tap;
  const int64_t outputs = (c.out.dims[axis] - phase + stride - 1) / stride;
  return WindowAxis{c.x.dims[axis],
                    outputs,
                    tap < taps ? (taps - tap - 1) / selection->tap_step + 1 : 0,
                    (at - tap * dilation) / stride,
                    1,
                    -dilation / common,
                    c.x.strides[axis]};
}

// The weights [in, out of a group, ...] at the taps of a part, as rows [out, in * taps].
void lay_out_weights(const Convolution& c, const Part& part, int threads, float* to) {
  const auto& axes = part.patches.axes;
  int64_t sizes[kAxes] = {1, 1, 1};
  for (int i = kAxes - c.spatial(); i < kAxes; ++i) sizes[i] = c.w.dims[2 + i - kAxes + c.spatial()];
  const int64_t kernel = sizes[0] * sizes[1] * sizes[2];
  const Selection* selected = part.selections;
  parallel(c.out.dims[1], 1 + 16384 / (part.depth + 1), threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t group = row / c.outputs(), own = row % c.outputs();
      float* at = to + row * part.depth;
      for (int64_t i = 0; i < c.inputs(); ++i) {
        const int64_t channel = group * c.inputs() + i;
        const float* from = c.w.as<const float>() + (channel * c.outputs() + own) * kernel;
        for (int64_t t = 0; t < part.patches.taps(); ++t) {
          const int64_t taps[kAxes] = {t / (axes[1].taps * axes[2].taps),
                                       t / axes[2].taps % axes[1].taps, t % axes[2].taps};
          int64_t place = 0;
          for (int a = 0; a < kAxes; ++a) {
            place = place * sizes[a] + selected[a].first_tap + taps[a] * selected[a].tap_step;
          }
          *at++ = from[place];
        }
      }
    }
  });
}

bool transposed(const Convolution& c, const Context& context) {
  auto* weights = static_cast<float*>(
      context.workspace(std::max<int64_t>(1, c.w.count()) * sizeof(float), kWeightSlot));
  if (weights == nullptr) return context.complete();
  const int missing = kAxes - c.spatial();
  int64_t phases[kAxes] = {1, 1, 1};
  for (int i = missing; i < kAxes; ++i) {
    phases[i] = std::min(c.settings.stride[i - missing], c.out.dims[2 + i - missing]);
  }
  const int64_t count = phases[0] * phases[1] * phases[2];
  for (int64_t phase = 0; phase < count; ++phase) {
    Part part{};
    part.patches = Patches{c.x.as<const float>(), c.x.strides[1], {}};
    part.scattered = count > 1;
    int64_t left = phase;
    for (int i = kAxes - 1; i >= 0; --i) {
      part.patches.axes[i] = WindowAxis{1, 1, 1, 0, 1, 1, 0};
      part.selections[i] = Selection{0, 1, 0, 1};
      if (i < missing) continue;
      part.patches.axes[i] = transposed_axis(c, i - missing, left % phases[i], &part.selections[i]);
      left /= phases[i];
    }
    part.depth = c.inputs() * part.patches.taps();
    lay_out_weights(c, part, context.threads, weights);
    part.w = weights;
    if (!multiply(c, part, context)) return false;
  }
  return true;
}

// `integers`: lists of numbers for each axis, each with its length in front.
const int64_t* read_list(const int64_t* integers, int64_t* to) {
  const int64_t count = *integers++;
  for (int64_t i = 0; i < count && i < kAxes; ++i) to[i] = integers[i];
  return integers + count;
}

bool plainly(const Convolution& c, const Step& step, bool transposed, const Context& context) {
  const Settings& s = c.settings;
  return convolve_plainly({c.out, c.x, c.w, step.tensors[3], s.stride, s.padding, s.dilation,
                           s.groups, transposed},
                          context.threads);
}

bool convolution(const Step& step, const Context& context) {
  Convolution c{step.tensors[0], step.tensors[1], step.tensors[2],
                step.tensors[3].as<const float>(), nullptr, {}, {}};
  const int64_t* read = read_list(step.integers, c.settings.stride);
  read = read_list(read, c.settings.padding);
  read = read_list(read, c.settings.dilation);
  c.settings.groups = *read;
  if (c.out.count() == 0) return true;
  return c.x.dtype == DType::kFloat32 ? ordinary(c, context) : plainly(c, step, false, context);
}

// As `convolution`, with a residual that is added to the result, and a function of that.
bool ended_convolution(const Step& step, const Context& context) {
  Convolution c{step.tensors[0], step.tensors[1], step.tensors[2],
                step.tensors[3].as<const float>(), step.tensors[4].as<const float>(), {}, {}};
  const int64_t* read = read_list(step.integers, c.settings.stride);
  read = read_list(read, c.settings.padding);
  read = read_list(read, c.settings.dilation);
  c.settings.groups = read[0];
  c.ending = Ending{static_cast<Activation>(read[1]), static_cast<float>(step.numbers[0]),
                    static_cast<float>(step.numbers[1])};
  return c.out.count() == 0 || ordinary(c, context);
}

bool transposed_convolution(const Step& step, const Context& context) {
  Convolution c{step.tensors[0], step.tensors[1], step.tensors[2],
                step.tensors[3].as<const float>(), nullptr, {}, {}};
  int64_t extra[kAxes];  // at the end of the result, whose size is known
  const int64_t* read = read_list(step.integers, c.settings.stride);
  read = read_list(read, c.settings.padding);
  read = read_list(read, extra);
  c.settings.groups = *read++;
  read_list(read, c.settings.dilation);
  if (c.out.count() == 0) return true;
  return c.x.dtype == DType::kFloat32 ? transposed(c, context) : plainly(c, step, true, context);
}

}  // namespace

const Entry kConvolutions[] = {
    {"aten::convolution", convolution},
    {"kvc::convolution", ended_convolution},
    {"aten::conv_transpose1d", transposed_convolution},
    {"aten::conv_transpose2d.input", transposed_convolution},
    {"aten::conv_transpose3d.input", transposed_convolution},
    {nullptr, nullptr},
};

}  // namespace kvc
