// int8 rows and products of them. ROWS: int8 rows with a scale, steps per unit, and a zero
// point for each. Tensors: q, scale, zero point, x. CACHE: the same, symmetric, with a
// scale in units per step. Tensors: q, scale, x. LINEAR: a workgroup of 32 takes a column
// and up to 8 rows; integer sums are exact. Tensors: result, q, scale, zero point, weight,
// weight scale, bias.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 32) in;
#include "step.glsl"

const uint ROWS = 0, CACHE = 1, LINEAR = 2;
const int MOST = 8;
shared float lows[32], highs[32];
shared int sums[MOST][32];
int lane;

// The least and the greatest of all lanes; a NaN is both.
void find_range(inout float low, inout float high) {
  lows[lane] = low;
  highs[lane] = high;
  barrier();
  for (int half_of = 16; half_of > 0; half_of >>= 1) {
    if (lane < half_of) {
      float a = lows[lane + half_of], b = highs[lane + half_of];
      if (is_nan(a) || a < lows[lane]) lows[lane] = a;
      if (is_nan(b) || b > highs[lane]) highs[lane] = b;
    }
    barrier();
  }
  low = lows[0];
  high = highs[0];
  barrier();
}

void quantize(uint row) {
  Tensor q = push.step.tensors[0], scales = push.step.tensors[1];
  bool cached = push.op == CACHE;
  Tensor x = push.step.tensors[cached ? 2 : 3];
  int last = x.rank - 1, width = x.dims[last];
  int read = offset_of(row, last, x.dims, x.strides);
  int write = offset_of(row, last, q.dims, q.strides);
  float low = 0.0, high = 0.0;
  for (int i = lane; i < width; i += 32) {
    float value = load(x, read + i * x.strides[last]);
    if (is_nan(value)) low = high = value;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  find_range(low, high);
  float scale, zero = 0.0;
  if (cached) {
    float most = is_nan(low) || -low > high ? -low : high;
    scale = most / 127.0;
    if (scale < 1.17549435e-38) scale = 1.17549435e-38;
  } else {
    precise float spread = high - low;
    scale = spread == 0.0 ? 1.0 : 255.0 / spread;
    precise float first = low * scale, end = high * scale;
    bool at_low = (first - 128.0) + (end + 127.0) > 0.0;
    zero = roundEven(clamp(at_low ? -128.0 - first : 127.0 - end, -128.0, 127.0));
  }
  for (int i = lane; i < width; i += 32) {
    precise float value = load(x, read + i * x.strides[last]);
    float steps = roundEven(cached ? value / scale : value * scale) + zero;
    if (cached) steps = steps >= -127.0 && steps <= 127.0 ? steps : 0.0;
    store_whole(q, write + i * q.strides[last], int64_t(int(clamp(is_nan(steps) ? 0.0 : steps, -128.0, 127.0))));
  }
  if (lane != 0) return;
  store(scales, place(scales, row), scale);
  if (!cached) store_whole(push.step.tensors[2], place(push.step.tensors[2], row), int64_t(int(is_nan(zero) ? 0.0 : zero)));
}

void multiply(uint item, int m) {
  Tensor q = push.step.tensors[1], weight = push.step.tensors[4];
  int groups = (m + MOST - 1) / MOST, depth = q.dims[1];
  int column = int(item) / groups, first = int(item) % groups * MOST;
  int count = min(MOST, m - first);
  Tensor zeros = push.step.tensors[3];
  int found[MOST], zero[MOST];
  for (int i = 0; i < count; ++i) {
    found[i] = 0;
    zero[i] = clamp(int(load_whole(zeros, place(zeros, uint(first + i)))), -128, 127);
  }
  for (int k = lane; k < depth; k += 32) {
    int w = int(Bytes(weight.at).at[column * weight.strides[0] + k * weight.strides[1]]);
    for (int i = 0; i < count; ++i) {
      found[i] += w * (int(Bytes(q.at).at[(first + i) * q.strides[0] + k * q.strides[1]]) - zero[i]);
    }
  }
  for (int i = 0; i < count; ++i) sums[i][lane] = found[i];
  barrier();
  for (int half_of = 16; half_of > 0; half_of >>= 1) {
    if (lane < half_of) {
      for (int i = 0; i < count; ++i) sums[i][lane] += sums[i][lane + half_of];
    }
    barrier();
  }
  if (lane < count) {
    Tensor result = push.step.tensors[0], scales = push.step.tensors[2];
    Tensor weight_scale = push.step.tensors[5], bias = push.step.tensors[6];
    int row = first + lane;
    precise float value = float(sums[lane][0]) / load(scales, place(scales, uint(row)));
    value *= load(weight_scale, column * weight_scale.strides[0]);
    if (bias.at != 0) value += load(bias, column * bias.strides[0]);
    store(result, row * result.strides[0] + column * result.strides[1], value);
  }
  barrier();
}

void main() {
  if (stopped()) return;
  lane = int(gl_LocalInvocationID.x);
  for (uint item = gl_WorkGroupID.x; item < push.count; item += gl_NumWorkGroups.x) {
    if (push.op == LINEAR) multiply(item, push.step.tensors[0].dims[0]);
    else quantize(item);
  }
}
