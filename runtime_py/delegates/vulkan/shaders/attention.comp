// kvc::attention: a workgroup for each query of a head. Positions are taken in pieces of
// 64, cut at multiples of it, folded in their order (the online softmax of Milakov and
// Gimelshein, 2018), so that a result does not depend on how a prompt is cut into calls.
// Tensors: out, q, k, v, valid, mask, slopes, sinks, k_scale, v_scale, lengths.
// integers: 0 whether a ring, 1 left and 2 right of the window (-1: no bound), 3 how many
// positions a ring keeps, 4 how many are valid where no tensor says it. numbers: 0 scale,
// 1 the soft cap, 0 for none.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64) in;
#include "step.glsl"
#include "functions.glsl"

const int PIECE = 64, WIDEST = 1024;
const int64_t MOST = int64_t(1) << 62;  // valid positions, so that no sum of them overflows
shared float scores[PIECE], lanes[PIECE], sums[WIDEST];
uint lane;

float load_cached(Tensor t, int offset) {
  if (t.dtype == FLOAT32) return load_float(t, offset);
  return t.dtype == FLOAT16 ? float(Halves(t.at).at[offset]) : float(Bytes(t.at).at[offset]);
}

float reduced(float mine, bool sum) {
  lanes[lane] = mine;
  barrier();
  for (uint half_of = 32; half_of > 0; half_of >>= 1) {
    if (lane < half_of) {
      float a = lanes[lane], b = lanes[lane + half_of];
      lanes[lane] = sum ? a + b : (is_nan(a) ? a : (is_nan(b) || b > a ? b : a));
    }
    barrier();
  }
  float found = lanes[0];
  barrier();
  return found;
}

int64_t at(Tensor t, uint i) { return load_whole(t, place(t, i)); }

int64_t total_of(uint row) {
  Tensor valid = push.step.tensors[4];
  return valid.at != 0 ? at(valid, row) : push.step.integers[4];
}
int64_t count_of(uint row, int64_t seq) {
  Tensor lengths = push.step.tensors[10];
  return lengths.at != 0 ? at(lengths, row) : seq;
}

void check(uint batch, int64_t seq, int64_t slots, bool circular) {
  for (uint row = 0; row < batch; ++row) {
    int64_t total = total_of(row);
    if (total < 0 || total > (circular ? MOST : slots)) { refuse(BAD_LENGTH, int64_t(row), total, slots, 0); return; }
  }
  for (uint row = 0; row < batch; ++row) {
    int64_t count = count_of(row, seq);
    if (count < 0 || count > seq) { refuse(ROW_LENGTH_OUT_OF_RANGE, int64_t(row), count, seq, 0); return; }
  }
}

void main() {
  if (stopped()) return;
  lane = gl_LocalInvocationID.x;
  Tensor result = push.step.tensors[0], q = push.step.tensors[1];
  Tensor k = push.step.tensors[2], v = push.step.tensors[3], mask = push.step.tensors[5];
  Tensor slopes = push.step.tensors[6], sinks = push.step.tensors[7];
  Tensor k_scale = push.step.tensors[8], v_scale = push.step.tensors[9];
  bool circular = push.step.integers[0] != 0;
  int64_t left = push.step.integers[1], right = push.step.integers[2], keep = push.step.integers[3];
  float scale = push.step.numbers[0], softcap = push.step.numbers[1];
  uint batch = uint(q.dims[0]), heads = uint(q.dims[1]), seq = uint(q.dims[2]);
  int width = q.dims[3], value_width = v.dims[3];
  int64_t slots = int64_t(k.dims[2]);
  if (gl_WorkGroupID.x == 0 && lane == 0) check(batch, int64_t(seq), slots, circular);
  for (uint item = gl_WorkGroupID.x; item < push.count; item += gl_NumWorkGroups.x) {
    uint query = item % seq, head = item / seq % heads, row = item / seq / heads;
    uint group = head / (heads / uint(k.dims[1]));
    int64_t total = clamp(total_of(row), int64_t(0), circular ? MOST : slots);
    int64_t count = clamp(count_of(row, int64_t(seq)), int64_t(0), int64_t(seq));
    int64_t here = total - count + int64_t(query);
    int64_t end = mask.at != 0 ? min(total, int64_t(mask.dims[3])) : total;
    int64_t oldest = circular ? keep + max(int64_t(0), total - slots) : int64_t(0);
    int64_t last = right < 0 ? end : min(end, here + right + 1);
    int64_t first = left < 0 ? oldest : max(oldest, here - left);
    if (int64_t(query) >= count) last = 0;
    int from_q = int(row) * q.strides[0] + int(head) * q.strides[1] + int(query) * q.strides[2];
    int from_k = int(row) * k.strides[0] + int(group) * k.strides[1];
    int from_v = int(row) * v.strides[0] + int(group) * v.strides[1];
    for (int j = int(lane); j < value_width; j += PIECE) sums[j] = 0.0;
    float most = -INFINITY, weight = 0.0;
    for (int64_t base = 0; base < last; base += PIECE) {
      if (base >= keep && base + PIECE <= first) base = first / PIECE * PIECE;
      if (base >= last) break;
      int64_t position = base + int64_t(lane);
      bool seen = position < last && (position < keep || position >= first);
      int64_t slot = circular && position >= keep ? keep + (position - keep) % (slots - keep) : position;
      float score = -INFINITY;
      if (seen) {
        float sum = 0.0;
        int key = from_k + int(slot) * k.strides[2];
        for (int j = 0; j < width; ++j) {
          sum += load_float(q, from_q + j * q.strides[3]) * scale * load_cached(k, key + j * k.strides[3]);
        }
        if (k_scale.at != 0) {
          sum *= load_float(k_scale, int(row) * k_scale.strides[0] + int(group) * k_scale.strides[1] + int(slot) * k_scale.strides[2]);
        }
        if (softcap != 0.0) sum = softcap * tanh_of(sum / softcap);
        if (mask.at != 0) {
          int place_of = int(row) * mask.strides[0] + int(head) * mask.strides[1] + int(query) * mask.strides[2] + int(position) * mask.strides[3];
          if (mask.dtype == BOOL) sum = load(mask, place_of) != 0.0 ? sum : -INFINITY;
          else sum += load(mask, place_of);
        }
        if (slopes.at != 0) sum += load_float(slopes, int(head) * slopes.strides[0]) * float(position - here);
        score = sum;
      }
      float greatest = reduced(score, false);
      if (greatest == -INFINITY) continue;
      float next = is_nan(most) ? most : (is_nan(greatest) || greatest > most ? greatest : most);
      float mine = score == -INFINITY ? 0.0 : exp_of(score - next);
      float factor = most == -INFINITY ? 0.0 : exp_of(most - next);
      weight = weight * factor + reduced(mine, true);
      if (v_scale.at != 0 && mine != 0.0) {
        mine *= load_float(v_scale, int(row) * v_scale.strides[0] + int(group) * v_scale.strides[1] + int(slot) * v_scale.strides[2]);
      }
      scores[lane] = mine;
      barrier();
      int64_t turning = slots - keep;
      for (int j = int(lane); j < value_width; j += PIECE) {
        float sum = sums[j] * factor;
        for (int i = 0; i < PIECE; ++i) {
          if (scores[i] == 0.0) continue;
          int64_t p = base + int64_t(i);
          int64_t s = circular && p >= keep ? keep + (p - keep) % turning : p;
          sum += scores[i] * load_cached(v, from_v + int(s) * v.strides[2] + j * v.strides[3]);
        }
        sums[j] = sum;
      }
      barrier();
      most = next;
    }
    float factor = 1.0;
    if (sinks.at != 0 && most != -INFINITY) {
      float sink = load_float(sinks, int(head) * sinks.strides[0]);
      float next = is_nan(most) || most > sink ? most : sink;
      factor = exp_of(most - next);
      weight = weight * factor + exp_of(sink - next);
    }
    int to = int(row) * result.strides[0] + int(head) * result.strides[1] + int(query) * result.strides[2];
    for (int j = int(lane); j < value_width; j += PIECE) {
      store_float(result, to + j * result.strides[3], most == -INFINITY ? 0.0 : sums[j] * factor / weight);
    }
    barrier();
  }
}
