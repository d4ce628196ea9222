// Elements at indices. CHECK: every index lies between integers[0] and integers[1]; one
// workgroup. PICK: out = x at the place of out's element, moved along axes by indices that
// have out's dims. PUT: the same backwards, out at that place becomes the value, or is
// increased by it; an invocation for each place outside of the axes of the indices, which
// are the last, so that the order of equal indices is that of the elements.
//
// Tensors: out, x or values, indices. integers: 0 how many indices, 1 how many axes are
// kept (PUT), 2 how many elements one invocation puts, then stride and size of each index.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64) in;
#include "step.glsl"

const uint CHECK = 0, PICK = 1, PICK_SCALED = 2, PUT = 3, ADD = 4, ADD_WHOLE = 5;
shared uint worst;

void check() {
  if (gl_LocalInvocationID.x == 0) worst = NONE;
  barrier();
  Tensor index = push.step.tensors[0];
  for (uint i = gl_LocalInvocationID.x; i < push.count; i += 64) {
    int64_t found = load_whole(index, place(index, i));
    if (found < push.step.integers[0] || found >= push.step.integers[1]) {
      atomicMin(worst, i);
      break;
    }
  }
  barrier();
  if (gl_LocalInvocationID.x == 0 && worst != NONE) {
    refuse(INDEX_OUT_OF_RANGE, load_whole(index, place(index, worst)), push.step.integers[1], 0, 0);
  }
}

int moved(uint nth) {
  int found = 0;
  for (int i = 0; i < int(push.step.integers[0]); ++i) {
    Tensor index = push.step.tensors[2 + i];
    int64_t at = load_whole(index, place(index, nth));
    int64_t size = push.step.integers[4 + 2 * i];
    found += int((at < 0 ? at + size : at) * push.step.integers[3 + 2 * i]);
  }
  return found;
}

void main() {
  if (stopped()) return;
  if (push.op == CHECK) {
    check();
    return;
  }
  Tensor result = push.step.tensors[0], x = push.step.tensors[1];
  if (push.op == PICK || push.op == PICK_SCALED) {
    for (uint nth = first_item(); nth < push.count; nth += all_items()) {
      int at = place(x, nth) + moved(nth);
      if (push.op == PICK) {
        store_whole(result, place(result, nth), load_whole(x, at));
        continue;
      }
      Tensor scale = push.step.tensors[3];
      Tensor index = push.step.tensors[2];
      int row = int(load_whole(index, place(index, nth)));
      store(result, place(result, nth), load(x, at) * load(scale, row * scale.strides[0]));
    }
    return;
  }
  uint each = uint(push.step.integers[2]);
  for (uint kept = first_item(); kept < push.count; kept += all_items()) {
    for (uint i = 0; i < each; ++i) {
      uint nth = kept * each + i;
      int to = place(result, nth) + moved(nth), from = place(x, nth);
      if (push.op == PUT) {
        store_whole(result, to, load_whole(x, from));
      } else if (push.op == ADD) {
        store(result, to, load(result, to) + push.step.numbers[0] * load(x, from));
      } else {
        store_whole(result, to, load_whole(result, to) + push.step.integers[15] * load_whole(x, from));
      }
    }
  }
}
