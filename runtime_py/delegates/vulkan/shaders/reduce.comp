// One which of all elements along the reduced axes: an invocation for each. Tensors:
// which, x with kept axes first, the index if both are wanted. integers[0] is how many
// axes are kept, integers[1] how many elements are reduced.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64) in;
#include "step.glsl"

const uint SUM = 0, MEAN = 1, MOST = 2, LEAST = 3, ANY = 4, ALL = 5, MOST_AT = 6, LEAST_AT = 7;
const uint BOTH_MOST = 8, BOTH_LEAST = 9, CUMULATE = 10;
const uint BLOCK = 64;

Tensor x;
int kept, base;

int element(uint place) {
  int found = base;
  for (int d = x.rank - 1; d >= kept; --d) {
    uint size = uint(x.dims[d]);
    found += int(place % size) * x.strides[d];
    place /= size;
  }
  return found;
}

// Blocks are added up by themselves, with what rounding loses, so that long sums stay exact.
float sum_floats(uint count) {
  precise float total = 0.0;
  precise float lost = 0.0;
  for (uint first = 0; first < count; first += BLOCK) {
    float block = 0.0;
    for (uint i = first; i < min(count, first + BLOCK); ++i) block += load(x, element(i));
    precise float sum = total + block;
    if (abs(sum) < uintBitsToFloat(0x7f800000u)) {
      lost += abs(total) >= abs(block) ? (total - sum) + block : (block - sum) + total;
    }
    total = sum;
  }
  return total + lost;
}

bool precedes(float a, float b, bool most) {
  return !is_nan(b) && (is_nan(a) || (most ? a > b : a < b));
}

void choose(uint which, uint count, bool most, int into, int index_into) {
  uint at = 0;
  if (x.dtype == FLOAT32) {
    float found = load(x, element(0));
    for (uint i = 1; i < count; ++i) {
      float value = load(x, element(i));
      if (precedes(value, found, most)) found = value, at = i;
    }
    if (into >= 0) store(push.step.tensors[into], place(push.step.tensors[into], which), found);
  } else {
    int64_t found = load_whole(x, element(0));
    for (uint i = 1; i < count; ++i) {
      int64_t value = load_whole(x, element(i));
      if (most ? value > found : value < found) found = value, at = i;
    }
    if (into >= 0) store_whole(push.step.tensors[into], place(push.step.tensors[into], which), found);
  }
  if (index_into >= 0) {
    store_whole(push.step.tensors[index_into], place(push.step.tensors[index_into], which), int64_t(at));
  }
}

void cumulate(uint which, uint count) {
  Tensor result = push.step.tensors[0];
  int at = offset_of(which, kept, result.dims, result.strides);
  precise float total = 0.0;
  precise float lost = 0.0;
  int64_t whole = 0;
  for (uint i = 0; i < count; ++i, at += result.strides[kept]) {
    if (result.dtype != FLOAT32) {
      whole += load_whole(x, element(i));
      store_whole(result, at, whole);
      continue;
    }
    float value = load(x, element(i));
    precise float sum = total + value;
    if (abs(sum) < uintBitsToFloat(0x7f800000u)) {
      lost += abs(total) >= abs(value) ? (total - sum) + value : (value - sum) + total;
    }
    total = sum;
    store(result, at, total + lost);
  }
}

void main() {
  if (stopped()) return;
  uint count = uint(push.step.integers[1]);
  x = push.step.tensors[1];
  kept = int(push.step.integers[0]);
  for (uint i = first_item(); i < push.count; i += all_items()) {
    base = offset_of(i, kept, x.dims, x.strides);
    Tensor result = push.step.tensors[0];
    switch (push.op) {
      case SUM: case MEAN:
        if (result.dtype == FLOAT32) {
          float total = sum_floats(count);
          store(result, place(result, i), push.op == MEAN ? total / float(count) : total);
        } else {
          int64_t total = 0;
          for (uint j = 0; j < count; ++j) total += load_whole(x, element(j));
          store_whole(result, place(result, i), total);
        }
        break;
      case MOST: case LEAST: choose(i, count, push.op == MOST, 0, -1); break;
      case MOST_AT: case LEAST_AT: choose(i, count, push.op == MOST_AT, -1, 0); break;
      case BOTH_MOST: case BOTH_LEAST: choose(i, count, push.op == BOTH_MOST, 0, 2); break;
      case ANY: case ALL: {
        bool found = push.op == ALL;
        for (uint j = 0; j < count; ++j) {
          bool value = load_whole(x, element(j)) != 0;
          found = push.op == ANY ? found || value : found && value;
        }
        store_whole(result, place(result, i), int64_t(found));
        break;
      }
      default: cumulate(i, count);
    }
  }
}
