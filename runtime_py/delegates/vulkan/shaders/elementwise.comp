// Each result by itself, of elements at the same place. Results: 1. Operands that are
// left out are numbers of the step. The numbers of ops are those of steps.py.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64) in;
#include "step.glsl"
#include "functions.glsl"

int offsets[4];

void find_offsets(uint nth, uint operands) {
  for (uint i = 0; i < 4; ++i) offsets[i] = 0;
  for (int d = push.step.tensors[0].rank - 1; d >= 0; --d) {
    uint size = uint(push.step.tensors[0].dims[d]);
    int at = int(nth % size);
    nth /= size;
    for (uint i = 0; i < operands; ++i) offsets[i] += at * push.step.tensors[i].strides[d];
  }
}

bool has(uint i) { return push.step.tensors[i].at != 0; }
float number(uint i) {
  return has(i) ? load(push.step.tensors[i], offsets[i]) : push.step.numbers[i];
}
int64_t whole(uint i) {
  return has(i) ? load_whole(push.step.tensors[i], offsets[i]) : push.step.integers[i];
}

float greater(float a, float b) { return is_nan(a) ? a : (is_nan(b) ? b : (a > b ? a : b)); }
float lesser(float a, float b) { return is_nan(a) ? a : (is_nan(b) ? b : (a < b ? a : b)); }

// As C has it: GLSL leaves open what the power of a negative number is.
float power(float x, float y) {
  if (y == 0.0 || x == 1.0) return 1.0;
  if (y == 1.0) return x;
  if (y == 2.0) return x * x;
  if (y == 3.0) return x * x * x;
  if (y == 0.5) return sqrt(x);
  if (y == -0.5) return 1.0 / sqrt(x);
  if (y == -1.0) return 1.0 / x;
  if (y == -2.0) return 1.0 / (x * x);
  if (is_nan(x) || is_nan(y)) return uintBitsToFloat(0x7fc00000u);
  bool integral = floor(y) == y, odd = integral && abs(y) < 16777216.0 && (int(y) & 1) != 0;
  if (x < 0.0 && !integral && abs(x) != INFINITY) return uintBitsToFloat(0x7fc00000u);
  float size = abs(x), found;
  if (size == 0.0) {
    found = y > 0.0 ? 0.0 : INFINITY;
  } else if (integral && abs(y) <= 64.0) {
    found = 1.0;
    float factor = size;
    for (int left = int(abs(y)); left != 0; left >>= 1, factor *= factor) {
      if ((left & 1) != 0) found *= factor;
    }
    if (y < 0.0) found = 1.0 / found;
  } else {
    // The logarithm in two parts, so that its product with y keeps enough digits.
    float high = floor(log_of(size) * 256.0 + 0.5) / 256.0;
    // In two halves where one power would leave the range of what is no subnormal.
    float halfway = exp_of(-0.5 * high);
    float rest = (abs(high) > 80.0 ? size * halfway * halfway : size * exp_of(-high)) - 1.0;
    float low = rest - rest * rest * 0.5 + rest * rest * rest / 3.0;
    float main = floor(high * y), left = (high * y - main) + low * y;
    found = size == INFINITY ? (y > 0.0 ? INFINITY : 0.0) : exp_of(main) * exp_of(left);
  }
  return odd && (x < 0.0 || (x == 0.0 && 1.0 / x < 0.0)) ? -found : found;
}

float compute(uint op) {
  float a = number(1);
  switch (op) {
    case 0: return a;
    case 1: return a + push.step.numbers[3] * number(2);
    case 2: return a - push.step.numbers[3] * number(2);
    case 3: return number(2) - push.step.numbers[3] * a;
    case 4: return a * number(2);
    case 5: return a / number(2);
    case 6: return greater(a, number(2));
    case 7: return lesser(a, number(2));
    case 8: return power(a, number(2));
    case 9: return a == number(2) ? 1.0 : 0.0;
    case 10: return a != number(2) ? 1.0 : 0.0;
    case 11: return a < number(2) ? 1.0 : 0.0;
    case 12: return a <= number(2) ? 1.0 : 0.0;
    case 13: return a > number(2) ? 1.0 : 0.0;
    case 14: return a >= number(2) ? 1.0 : 0.0;
    case 15: return a != 0.0 ? number(2) : number(3);
    case 16: return lesser(greater(a, number(2)), number(3));
    case 17: return -a;
    case 18: return abs(a);
    case 19: return ceil(a);
    case 20: return floor(a);
    case 21: return roundEven(a);
    case 22: return trunc(a);
    case 23: return sqrt(a);
    case 24: return 1.0 / sqrt(a);
    case 25: return 1.0 / a;
    case 26: return exp_of(a);
    case 27: return log_of(a);
    case 28: return sine(a, 0);
    case 29: return sine(a, 1);
    case 30: return tanh_of(a);
    case 31: return 1.0 / (1.0 + exp_of(-a));
    case 32: return silu_of(a);
    case 33: return a < 0.0 ? 0.0 : a;
    case 34: return gelu_of(a);
    case 35: return gelu_tanh_of(a);
    case 36: return erf_of(a);
    case 37: return silu_of(a) * number(2);
    case 38: return gelu_of(a) * number(2);
    case 39: return gelu_tanh_of(a) * number(2);
    case 43: return a != 0.0 && number(2) != 0.0 ? 1.0 : 0.0;
    case 44: return a != 0.0 || number(2) != 0.0 ? 1.0 : 0.0;
    case 45: return (a != 0.0) != (number(2) != 0.0) ? 1.0 : 0.0;
    default: return 0.0;
  }
}

int64_t compute_whole(uint op) {
  int64_t a = whole(1);
  switch (op) {
    case 0: return a;
    case 1: return a + push.step.integers[3] * whole(2);
    case 2: return a - push.step.integers[3] * whole(2);
    case 3: return whole(2) - push.step.integers[3] * a;
    case 4: return a * whole(2);
    case 6: return a > whole(2) ? a : whole(2);
    case 7: return a < whole(2) ? a : whole(2);
    case 9: return int64_t(a == whole(2));
    case 10: return int64_t(a != whole(2));
    case 11: return int64_t(a < whole(2));
    case 12: return int64_t(a <= whole(2));
    case 13: return int64_t(a > whole(2));
    case 14: return int64_t(a >= whole(2));
    case 15: return a != 0 ? whole(2) : whole(3);
    case 16: {
      int64_t least = whole(2), most = whole(3);
      int64_t raised = a > least ? a : least;
      return raised < most ? raised : most;
    }
    case 17: return -a;
    case 18: return a < 0 ? -a : a;
    case 40: return a & whole(2);
    case 41: return a | whole(2);
    case 42: return a ^ whole(2);
    case 43: return int64_t(a != 0 && whole(2) != 0);
    case 44: return int64_t(a != 0 || whole(2) != 0);
    case 45: return int64_t((a != 0) != (whole(2) != 0));
    case 46: return ~a;
    case 47: return int64_t(a == 0);
    default: return 0;
  }
}

const uint WHOLE = 64, COUNT = 48, COUNT_WHOLE = WHOLE + 48, LOWER = WHOLE + 49, UPPER = WHOLE + 50;

// Whether an element of a matrix stays: integers[2] is the diagonal.
bool stays(uint nth, bool lower) {
  int rank = push.step.tensors[0].rank;
  uint columns = uint(push.step.tensors[0].dims[rank - 1]), rows = uint(push.step.tensors[0].dims[rank - 2]);
  int64_t distance = int64_t(nth % columns) - int64_t(nth / columns % rows);
  return lower ? distance <= push.step.integers[2] : distance >= push.step.integers[2];
}

void main() {
  if (stopped()) return;
  uint operands = uint(push.step.integers[15]);
  for (uint nth = first_item(); nth < push.count; nth += all_items()) {
    find_offsets(nth, operands);
    Tensor result = push.step.tensors[0];
    if (push.op == COUNT) {
      store(result, offsets[0], push.step.numbers[0] + float(nth) * push.step.numbers[1]);
    } else if (push.op == COUNT_WHOLE) {
      store_whole(result, offsets[0], push.step.integers[0] + int64_t(nth) * push.step.integers[1]);
    } else if (push.op == LOWER || push.op == UPPER) {
      store_whole(result, offsets[0], stays(nth, push.op == LOWER) ? whole(1) : 0);
    } else if (push.op >= WHOLE) {
      store_whole(result, offsets[0], compute_whole(push.op - WHOLE));
    } else {
      store(result, offsets[0], compute(push.op));
    }
  }
}
