// Elements of a line that are a stride of the last axis apart lie side by side, so that every tap
// reads a line of outputs without gaps.
#include "copied_patches.h"

#include <algorithm>

#include "products.h"

namespace kvc {
namespace {

// How many elements an axis reads for so many outputs, with the zeros around it.
int64_t reach_of(const WindowAxis& axis, int64_t outputs) {
  return (outputs - 1) * axis.step + (axis.taps - 1) * axis.dilation + 1;
}

}  // namespace

PatchCopy::PatchCopy(const Patches& patches, int64_t first, int64_t count)
    : patches_(patches), taps_(patches.taps()), first_(first), count_(count) {
  if (taps_ > 1 && taps_ <= kMostTaps && count > 0 && find_size()) find_offsets();
}

// False where there is more to copy than patches have.
bool PatchCopy::find_size() {
  const auto& [outer, middle, inner] = patches_.axes;
  const int64_t begin = first_ / inner.out, last = (first_ + count_ - 1) / inner.out;
  const int64_t slices = last / middle.out - begin / middle.out + 1;
  begins_[0] = begin / middle.out;
  begins_[1] = slices == 1 ? begin % middle.out : 0;
  planes_ = reach_of(outer, slices);
  lines_ = reach_of(middle, slices == 1 ? last - begin + 1 : middle.out);
  phases_ = inner.step;
  run_ = inner.out + (inner.taps - 1) * inner.dilation / inner.step;
  int64_t left = count_ * taps_;
  if (phases_ > kMostPhases) return false;
  for (const int64_t size : {planes_, lines_, phases_, run_}) left /= size;
  if (left == 0) return false;
  elements_ = planes_ * lines_ * phases_ * run_;
  return true;
}

void PatchCopy::find_offsets() {
  const auto& [outer, middle, inner] = patches_.axes;
  const int64_t line = phases_ * run_, plane = lines_ * line;
  int64_t* to = offsets_;
  for (int64_t a = 0; a < outer.taps; ++a) {
    for (int64_t b = 0; b < middle.taps; ++b) {
      for (int64_t c = 0; c < inner.taps; ++c) {
        const int64_t place = c * inner.dilation;
        *to++ = a * outer.dilation * plane + b * middle.dilation * line +
                place % phases_ * run_ + place / phases_;
      }
    }
  }
  copied_ = CopiedPatches{nullptr,    elements_,          offsets_,           taps_,
                          middle.out, outer.step * plane, middle.step * line, inner.out};
}

void PatchCopy::read(int64_t begin, int64_t end, float* to) {
  const auto& kernels = product_kernels().convolution;
  const auto& [outer, middle, inner] = patches_.axes;
  WindowAxis lines = middle;
  lines.first += begins_[1] * middle.step;
  copied_.x = to;
  rows_[0] = begin;
  rows_[1] = end;
  const float* x = patches_.x + begin / taps_ * patches_.channel_stride;
  const int64_t plane = lines_ * phases_ * run_;
  for (int64_t left = channels(end - begin); left > 0; --left, x += patches_.channel_stride) {
    for (int64_t i = 0; i < planes_; ++i, to += plane) {
      const int64_t at = outer.first + begins_[0] * outer.step + i;
      if (at >= 0 && at < outer.in) {
        kernels.copy_plane(x + at * outer.stride, lines, inner, lines_, run_, to);
      } else {
        std::fill_n(to, plane, 0.0f);
      }
    }
  }
  std::fill_n(to, kCopySlack, 0.0f);
}

void PatchCopy::pack(int64_t first, int64_t count, float* to) const {
  const auto& kernels = product_kernels().convolution;
  const auto& [outer, middle, inner] = patches_.axes;
  const int64_t depth = rows_[1] - rows_[0];
  const int64_t copied_first = first - (begins_[0] * middle.out + begins_[1]) * inner.out;
  for (int64_t at = 0; at < count; at += kernels.panel, to += kernels.panel * depth) {
    const int64_t columns = std::min(kernels.panel, count - at);
    if (elements_ != 0) {
      kernels.pack_copied(copied_, depth, copied_first + at, columns, to);
    } else {
      kernels.pack(patches_, rows_[0], rows_[1], first + at, columns, to);
    }
  }
}

}  // namespace kvc
