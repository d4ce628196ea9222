// Convolutions of float64 and of integers over one, two or three axes, by plain loops.
//
// Along an axis the input and the result meet: place p of the narrow one is multiplied with, or
// adds to, place p * stride - padding + tap * dilation of the wide one. The input is the wide
// one, or, of a transposed convolution, the result.
#include "plain_convolutions.h"

#include <algorithm>

#include "pool.h"
#include "types.h"

namespace kvc {
namespace {

constexpr int kAxes = 3;

// Where elements of the input and the result meet along an axis, and how far the next ones are.
struct Run {
  int64_t count, in, out, in_step, out_step;
};

// Where they meet at a tap. What settings come to may have more than 64 bits.
Run meet(const PlainConvolution& c, int own, int64_t tap) {
  using Long = __int128;
  const int axis = own + 2;
  const int64_t stride = c.stride[own];
  const Long start = static_cast<Long>(tap) * c.dilation[own] - c.padding[own];
  const int64_t wide = c.transposed ? c.out.dims[axis] : c.x.dims[axis];
  const int64_t narrow = c.transposed ? c.x.dims[axis] : c.out.dims[axis];
  // What is divided fits, and divisions of 128 bits are calls of a library of the compiler.
  const auto over = [&](Long size) { return static_cast<int64_t>(size) / stride; };
  const int64_t first = start < 0 ? over(stride - 1 - start) : 0;
  const int64_t end = start < wide ? std::min(narrow, over(wide - start + stride - 1)) : 0;
  if (first >= end) return Run{0, 0, 0, 0, 0};
  const int64_t at = first;
  const auto met = static_cast<int64_t>(start + static_cast<Long>(first) * stride);
  const int64_t in = c.x.strides[axis], out = c.out.strides[axis];
  const int64_t count = end - first;
  if (c.transposed) return Run{count, at * in, met * out, in, stride * out};
  return Run{count, met * in, at * out, stride * in, out};
}

// Adds the products of a channel of the input with one weight.
template <class T>
void add_products(const Run (&runs)[kAxes], const T* x, T w, T* out) {
  const auto& [outer, middle, inner] = runs;
  for (int64_t i = 0; i < outer.count; ++i) {
    for (int64_t j = 0; j < middle.count; ++j) {
      const T* from = x + outer.in + i * outer.in_step + middle.in + j * middle.in_step + inner.in;
      T* to = out + outer.out + i * outer.out_step + middle.out + j * middle.out_step + inner.out;
      if (inner.in_step == 1 && inner.out_step == 1) {
        for (int64_t k = 0; k < inner.count; ++k) to[k] = static_cast<T>(to[k] + w * from[k]);
      } else {
        for (int64_t k = 0; k < inner.count; ++k, from += inner.in_step, to += inner.out_step) {
          *to = static_cast<T>(*to + w * *from);
        }
      }
    }
  }
}

// One channel of the result: the bias, and products in the order of channels and taps.
template <class T>
void convolve_channel(const PlainConvolution& c, int64_t image, int64_t channel) {
  const int64_t outputs = c.out.dims[1] / c.groups, inputs = c.x.dims[1] / c.groups;
  const int64_t group = channel / outputs;
  int64_t plane = 1;  // its stride may be another where there is one channel
  for (int i = 2; i < c.out.rank; ++i) plane *= c.out.dims[i];
  T* to = c.out.as<T>() + image * c.out.strides[0] + channel * plane;
  std::fill_n(to, plane, c.bias ? c.bias.as<const T>()[channel] : T(0));
  const int axes = c.x.rank - 2, missing = kAxes - axes;
  int64_t taps[kAxes] = {1, 1, 1};
  for (int i = 0; i < axes; ++i) taps[missing + i] = c.w.dims[2 + i];
  const int64_t kernel = taps[0] * taps[1] * taps[2];
  for (int64_t i = 0; i < inputs; ++i) {
    const int64_t input = group * inputs + i;
    const int64_t row = c.transposed ? input * outputs + channel % outputs : channel * inputs + i;
    const T* from = c.x.as<const T>() + image * c.x.strides[0] + input * c.x.strides[1];
    const T* w = c.w.as<const T>() + row * kernel;
    for (int64_t t = 0; t < kernel; ++t) {
      const int64_t places[kAxes] = {t / (taps[1] * taps[2]), t / taps[2] % taps[1], t % taps[2]};
      Run runs[kAxes] = {{1, 0, 0, 0, 0}, {1, 0, 0, 0, 0}, {1, 0, 0, 0, 0}};
      for (int a = 0; a < axes; ++a) runs[missing + a] = meet(c, a, places[missing + a]);
      add_products(runs, from, w[t], to);
    }
  }
}

}  // namespace

bool convolve_plainly(const PlainConvolution& c, int threads) {
  const int64_t channels = c.out.dims[1];
  with_type(c.out.dtype, [&](auto zero) {
    parallel(c.out.dims[0] * channels, 1, threads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        convolve_channel<decltype(zero)>(c, i / channels, i % channels);
      }
    });
  });
  return true;
}

}  // namespace kvc
