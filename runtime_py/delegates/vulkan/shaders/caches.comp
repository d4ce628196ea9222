// UPDATE: writes of rows at their cursors, linear or in a ring. Tensors: cache, update,
// starts, lengths. integers: 0 the axis, 1 whether a ring, 2 how many slots a ring keeps.
// CHECK_INDEX: integers: least, count, slots. CHECK_ROWS: most, slots. Tensors of both:
// index, lengths.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64) in;
#include "step.glsl"

const uint UPDATE = 0, CHECK_INDEX = 1, CHECK_ROWS = 2;

int64_t whole_at(Tensor t, uint nth) { return load_whole(t, place(t, nth)); }

void check_index() {
  Tensor index = push.step.tensors[0];
  int64_t least = push.step.integers[0], count = push.step.integers[1], slots = push.step.integers[2];
  for (uint i = 0; i < push.count; ++i) {
    int64_t start = whole_at(index, i);
    if (start < least) { refuse(INDEX_OUT_OF_RANGE, start, slots, 0, 0); return; }
    if (start > slots - count) { refuse(CACHE_OVERFLOW, int64_t(i), start, count, slots); return; }
  }
}

void check_rows() {
  Tensor index = push.step.tensors[0], lengths = push.step.tensors[1];
  int64_t most = push.step.integers[0], slots = push.step.integers[1];
  for (uint row = 0; row < push.count; ++row) {
    int64_t count = whole_at(lengths, row);
    if (count < 0 || count > most) { refuse(ROW_LENGTH_OUT_OF_RANGE, int64_t(row), count, most, 0); return; }
  }
  for (uint row = 0; row < push.count; ++row) {
    int64_t start = whole_at(index, row), count = whole_at(lengths, row);
    if (start < 0) { refuse(INDEX_OUT_OF_RANGE, start, slots, 0, 0); return; }
    if (start > slots - count) { refuse(CACHE_OVERFLOW, int64_t(row), start, count, slots); return; }
  }
}

// Whether all rows fit; every invocation looks, before any writes.
bool fits(Tensor cache, Tensor starts, Tensor lengths, int64_t seq, int64_t slots) {
  bool circular = push.step.integers[1] != 0;
  int64_t keep = push.step.integers[2];
  for (uint row = 0; lengths.at != 0 && row < uint(cache.dims[0]); ++row) {
    int64_t count = whole_at(lengths, row);
    if (count < 0 || count > seq) { refuse(ROW_LENGTH_OUT_OF_RANGE, int64_t(row), count, seq, 0); return false; }
  }
  for (uint row = 0; row < uint(cache.dims[0]); ++row) {
    int64_t start = starts.at != 0 ? whole_at(starts, row) : 0;
    int64_t count = lengths.at != 0 ? whole_at(lengths, row) : seq;
    if (start < 0 && (!circular || keep != 0)) { refuse(INDEX_OUT_OF_RANGE, start, slots, 0, 0); return false; }
    int64_t kept = start < 0 ? 0 : (start < keep ? start : keep);
    int64_t room = circular ? slots - kept : slots - start;
    if (count > room) { refuse(CACHE_OVERFLOW, int64_t(row), start, count, slots); return false; }
  }
  return true;
}

void main() {
  if (stopped()) return;
  if (push.op != UPDATE) {
    if (gl_GlobalInvocationID.x != 0) return;
    if (push.op == CHECK_INDEX) check_index();
    else check_rows();
    return;
  }
  Tensor cache = push.step.tensors[0], update = push.step.tensors[1];
  Tensor starts = push.step.tensors[2], lengths = push.step.tensors[3];
  int axis = int(push.step.integers[0]);
  int64_t keep = push.step.integers[2], slots = int64_t(cache.dims[axis]);
  if (!fits(cache, starts, lengths, int64_t(update.dims[axis]), slots)) return;
  for (uint nth = first_item(); nth < push.count; nth += all_items()) {
    uint rest = nth, row = 0;
    int64_t token = 0;
    int to = 0, from = 0;
    for (int d = update.rank - 1; d >= 0; --d) {
      uint at = rest % uint(update.dims[d]);
      rest /= uint(update.dims[d]);
      from += int(at) * update.strides[d];
      if (d == 0) row = at;
      if (d == axis) token = int64_t(at);
      else to += int(at) * cache.strides[d];
    }
    if (lengths.at != 0 && token >= whole_at(lengths, row)) continue;
    int64_t slot = token + (starts.at != 0 ? whole_at(starts, row) : 0);
    if (push.step.integers[1] != 0 && (slot < 0 || slot >= keep)) {
      int64_t turning = slots - keep, turned = slot - keep;
      slot = keep + (turned < 0 ? turning - 1 - (-turned - 1) % turning : turned % turning);
    }
    to += int(slot) * cache.strides[axis];
    if (cache.dtype == update.dtype) store_whole(cache, to, load_whole(update, from));
    else store(cache, to, load(update, from));
  }
}
