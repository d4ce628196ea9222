// Convolutions of float32 over one, two or three axes, ordinary and transposed.
//
// Outputs are taken some panels at a time: their patches are packed side by side, and all rows
// of weights multiply them (Goto and van de Geijn, 2008, with the patches packed as they are
// needed). A transposed convolution with stride s is s ordinary ones along each axis, whose
// outputs lie s apart.
#include <algorithm>
#include <numeric>

#include "convolutions.h"
#include "copied_patches.h"
#include "depthwise.h"
#include "family_contracts.h"
#include "kernels.h"
#include "last_columns.h"
#include "plain_convolutions.h"
#include "pool.h"
#include "products.h"
#include "weight_rows.h"

namespace kvc {
namespace {

constexpr int64_t kPanelsTogether = 16;  // of a piece
constexpr int64_t kPacked = 8192;  // elements of panels that are packed at a time, but for a single one
constexpr int64_t kRowsTogether = 16;  // at least, of weights that a thread multiplies
constexpr int64_t kFewWeights = 65536;  // which all threads may read, again and again
constexpr int kPanelSlot = 0, kSumSlot = 1;  // of workspaces

// Where the outputs of an axis, and the taps of its kernel, lie among all of them.
struct Selection {
  int64_t first_output, output_step, first_tap, tap_step;
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

// Patches and the weights that multiply them.
struct Term {
  Patches patches;  // of the first image and channel
  WeightRows w;     // of the first group
  int64_t depth;
};

// Some of the outputs of a convolution, which are sums of terms: all, of one term; or every so
// many of a transposed one, of a term for each tap.
struct Part {
  WindowAxis axes[kAxes];
  Selection selections[kAxes];
  bool scattered;  // whether outputs lie apart, as `selections` have them
  int64_t w_stride, group_stride;

  int64_t outputs() const { return axes[0].out * axes[1].out * axes[2].out; }
  int64_t taps() const { return axes[0].taps * axes[1].taps * axes[2].taps; }
};

// Where a line of outputs of the last axis begins in a plane of the result.
int64_t line_of(const Convolution& c, const Part& part, int64_t line) {
  const int missing = kAxes - c.spatial();
  const int64_t middle = part.axes[1].out;
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
  const int64_t width = part.axes[2].out, step = part.selections[2].output_step;
  while (count > 0) {
    const int64_t place = first % width, n = std::min(width - place, count);
    float* to = plane + line_of(c, part, first / width) + place * step;
    for (int64_t i = 0; i < n; ++i) to[i * step] = sums[i];
    first += n;
    sums += n;
    count -= n;
  }
}

// Rows of panels that are packed at a time: whole channels, or whole lines of their taps where
// there are too many.
int64_t depth_together(const Convolution& c, const Part& part) {
  if (c.turned) return kDepthTogether;
  const int64_t taps = part.taps() <= kDepthTogether ? part.taps() : part.axes[2].taps;
  return std::max<int64_t>(1, kDepthTogether / taps) * taps;
}

// A piece of the work on a part: outputs `first` and following of one image, rows `begin` to
// `end` of the weights of one group.
struct Piece {
  int64_t image, group, first, count, begin, end;
};

// The n-th term of a part. An ordinary convolution has one, a transposed one has taps apart.
Term term_of(const Convolution& c, const Part& part, int64_t n) {
  Term term{{c.x.as<const float>(), c.x.strides[1], {part.axes[0], part.axes[1], part.axes[2]}},
            {c.w.data, c.scale, part.w_stride, 1}, c.inputs() * part.taps()};
  if (!c.turned) return term;
  int64_t place = 0;
  const int64_t taps[kAxes] = {n / (part.axes[1].taps * part.axes[2].taps),
                               n / part.axes[2].taps % part.axes[1].taps, n % part.axes[2].taps};
  for (int i = 0; i < kAxes; ++i) {
    WindowAxis& axis = term.patches.axes[i];
    axis.first += taps[i] * axis.dilation;
    axis.taps = 1;
    const int own = 2 + i - kAxes + c.spatial();
    place = place * (own < 2 ? 1 : c.w.dims[own]) + part.selections[i].first_tap +
            taps[i] * part.selections[i].tap_step;
  }
  term.w = term.w.from(0, place);
  term.w.step = c.outputs() * part.w_stride;
  term.depth = c.inputs();
  merge_axes(term.patches.axes);
  return term;
}

// Adds a term to the sums of a piece, `depth` rows of panels at a time; the first one begins them.
// False where a thread has no memory.
bool add_term(const Term& term, const Piece& piece, PanelProduct product, int64_t depth,
              const Context& context) {
  const auto& kernels = product_kernels().convolution;
  PatchCopy copy(term.patches, piece.first, piece.count);
  const int64_t deepest = std::max<int64_t>(1, std::min(depth, term.depth));
  const int64_t width = std::max<int64_t>(1, kPacked / (kernels.panel * deepest)) * kernels.panel;
  const int64_t packed = width * deepest + kCopySlack;
  const size_t nbytes = (packed + copy.elements(depth)) * sizeof(float);
  auto* panels = static_cast<float*>(context.workspace(nbytes, kPanelSlot));
  if (panels == nullptr) return false;
  product.panels = panels;
  float* const out = product.out;
  for (int64_t k = 0; k < term.depth; k += depth) {
    product.depth = std::min(depth, term.depth - k);
    const WeightRows some = term.w.from(0, k * term.w.step);
    const FloatRows floats = float_rows(some, product.rows, product.depth, context);
    if (floats.first == nullptr) return false;
    product.w = floats.first;
    product.w_stride = floats.row_stride;
    product.w_step = floats.step;
    copy.read(k, k + product.depth, panels + packed);
    for (int64_t at = 0; at < piece.count; at += width) {
      product.columns = std::min(width, piece.count - at);
      product.out = out + at;
      copy.pack(piece.first + at, product.columns, panels);
      kernels.panels(product);
    }
    product.more = true;
  }
  return true;
}

// Makes a piece; false where a thread has no memory.
bool multiply_piece(const Convolution& c, const Part& part, const Piece& piece,
                    const Context& context) {
  const auto& kernels = product_kernels().convolution;
  const int64_t plane = c.plane(), row = piece.group * c.outputs() + piece.begin;
  const int64_t terms = c.turned ? part.taps() : 1;
  const int64_t rows = piece.end - piece.begin;
  float* planes = c.out.as<float>() + (piece.image * c.out.dims[1] + row) * plane;
  float* sums = planes + piece.first;
  if (part.scattered) {
    sums = static_cast<float*>(context.workspace(rows * piece.count * sizeof(float), kSumSlot));
    if (sums == nullptr) return false;
  }
  PanelProduct product{nullptr,
                       0,
                       0,
                       nullptr,
                       0,
                       c.bias != nullptr ? c.bias + row : nullptr,
                       false,
                       sums,
                       part.scattered ? piece.count : plane,
                       rows,
                       piece.count};
  if (terms == 0 || c.inputs() == 0) kernels.panels(product);  // the bias alone
  for (int64_t i = 0; i < terms; ++i) {
    Term term = term_of(c, part, i);
    term.patches.x +=
        piece.image * c.x.strides[0] + piece.group * c.inputs() * term.patches.channel_stride;
    term.w = term.w.from(row, piece.group * part.group_stride + piece.begin * part.w_stride);
    if (!add_term(term, piece, product, depth_together(c, part), context)) return false;
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
  const int64_t last = c.turned ? 0 : last_columns(c, part.axes), outputs = part.outputs() - last;
  const int64_t panel = product_kernels().convolution.panel;
  const int64_t planes = c.images() * c.settings.groups;
  int64_t together = kPanelsTogether * panel, rows = c.outputs();
  const bool few = rows * c.inputs() * part.taps() <= kFewWeights;
  while (few && together > panel && planes * pieces_of(outputs, together) < 4 * context.threads) {
    together -= panel;
  }
  const int64_t blocks = pieces_of(outputs, together), wanted = context.threads > 1 ? 2 * context.threads : 1;
  if (planes * blocks < wanted) {
    const int64_t parts = pieces_of(wanted, planes * blocks);
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
      const bool ends = last > 0 && block == blocks - 1;
      if (ends && !multiply_last(c, piece.image, piece.group, piece.begin, piece.end, last,
                                 part.axes[2].stride, context)) {
        return;
      }
    }
  });
  return context.complete();
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

bool transposed(const Convolution& c, const Context& context) {
  const int missing = kAxes - c.spatial();
  int64_t phases[kAxes] = {1, 1, 1}, kernel = 1;
  for (int i = missing; i < kAxes; ++i) {
    phases[i] = std::min(c.settings.stride[i - missing], c.out.dims[2 + i - missing]);
    kernel *= c.w.dims[2 + i - missing];
  }
  const int64_t count = phases[0] * phases[1] * phases[2];
  for (int64_t phase = 0; phase < count; ++phase) {
    Part part{};
    part.scattered = count > 1;
    part.w_stride = kernel;
    part.group_stride = c.inputs() * c.outputs() * kernel;
    int64_t left = phase;
    for (int i = kAxes - 1; i >= 0; --i) {
      part.axes[i] = WindowAxis{1, 1, 1, 0, 1, 1, 0};
      part.selections[i] = Selection{0, 1, 0, 1};
      if (i < missing) continue;
      part.axes[i] = transposed_axis(c, i - missing, left % phases[i], &part.selections[i]);
      left /= phases[i];
    }
    if (!multiply(c, part, context)) return false;
  }
  return true;
}

bool plainly(const Convolution& c, const Step& step, bool transposed, const Context& context) {
  const Settings& s = c.settings;
  return convolve_plainly({c.out, c.x, c.w, step.tensors[3], s.stride, s.padding, s.dilation,
                           s.groups, transposed},
                          context.threads);
}

// An ordinary convolution as a step has it; `tensors` and `rest` are the operands after its bias
// and the integers after its settings.
Convolution read_convolution(const Step& step, const Tensor** tensors, const int64_t** rest) {
  Convolution c = read_operands(step, false, tensors);
  const int64_t* read = read_list(step.integers, c.settings.stride);
  read = read_list(read, c.settings.padding);
  read = read_list(read, c.settings.dilation);
  c.settings.groups = *read;
  *rest = read + 1;
  return c;
}

bool convolution(const Step& step, const Context& context) {
  const Tensor* tensors;
  const int64_t* rest;
  const Convolution c = read_convolution(step, &tensors, &rest);
  if (c.out.count() == 0) return true;
  return c.x.dtype == DType::kFloat32 ? convolve(c, context) : plainly(c, step, false, context);
}

// As `convolution`, with a residual that is added to the result, and a function of that.
bool ended_convolution(const Step& step, const Context& context) {
  const Tensor* tensors;
  const int64_t* rest;
  Convolution c = read_convolution(step, &tensors, &rest);
  c.residual = tensors[0].as<const float>();
  c.ending = Ending{static_cast<Activation>(*rest), static_cast<float>(step.numbers[0]),
                    static_cast<float>(step.numbers[1])};
  return c.out.count() == 0 || convolve(c, context);
}

bool transposed_convolution(const Step& step, const Context& context) {
  const Tensor* tensors;
  Convolution c = read_operands(step, true, &tensors);
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

Convolution read_operands(const Step& step, bool turned, const Tensor** rest) {
  const Tensor* next = step.tensors + 2;
  Convolution c{step.tensors[0], step.tensors[1], *next++, nullptr, nullptr, {}, turned, {}};
  if (c.w.dtype != c.x.dtype) c.scale = (next++)->as<const float>();
  c.bias = (next++)->as<const float>();
  *rest = next;
  return c;
}

// `integers`: lists of numbers for each axis, each with its length in front.
const int64_t* read_list(const int64_t* integers, int64_t* to) {
  const int64_t count = *integers++;
  for (int64_t i = 0; i < count && i < kAxes; ++i) to[i] = integers[i];
  return integers + count;
}

bool convolve(const Convolution& c, const Context& context) {
  Part part{};
  find_axes(c, part.axes);
  const Patches patches{c.x.as<const float>(), c.x.strides[1], {part.axes[0], part.axes[1], part.axes[2]}};
  if (c.scale == nullptr && is_depthwise(c.inputs(), patches)) {
    return convolve_planes({c.out, patches, c.w.as<const float>(), c.bias, c.residual, c.ending,
                            c.x.strides[0], c.images(), c.out.dims[1], c.outputs()},
                           context);
  }
  merge_axes(part.axes);
  part.w_stride = c.inputs() * part.taps();
  part.group_stride = c.outputs() * part.w_stride;
  return multiply(c, part, context);
}

const Entry kConvolutions[] = {
    {"aten::convolution", convolution, convolved},
    {"kvc::convolution", ended_convolution, convolved_and_ended},
    {"kvc::convolution_w8", ended_convolution, convolved_with_int8},
    {"kvc::conv_transpose_w8", transposed_convolution, transposed_convolved_with_int8},
    {"aten::conv_transpose1d", transposed_convolution, transposed_convolved},
    {"aten::conv_transpose2d.input", transposed_convolution, transposed_convolved},
    {"aten::conv_transpose3d.input", transposed_convolution, transposed_convolved},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
