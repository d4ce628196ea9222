// first = a cos - b sin, second = b cos + a sin, of the halves a and b of rows.
// Tensors: first, second, a, b, cos and sin of the first half, of the second.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64) in;
#include "step.glsl"

float value(uint i, uint nth) {
  return load_float(push.step.tensors[i], place(push.step.tensors[i], nth));
}

void main() {
  if (stopped()) return;
  for (uint nth = first_item(); nth < push.count; nth += all_items()) {
    float a = value(2, nth), b = value(3, nth);
    float first = a * value(4, nth) - b * value(5, nth);
    float second = b * value(6, nth) + a * value(7, nth);
    store_float(push.step.tensors[0], place(push.step.tensors[0], nth), first);
    store_float(push.step.tensors[1], place(push.step.tensors[1], nth), second);
  }
}
