// What every shader gets: a step of the recorded list, as steps.py writes it, and where
// faults are told. Elements are found by address, dims and strides (in elements).
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_control_flow_attributes : require

// The numbers of kvc.schema.dtypes.
const int FLOAT32 = 0, FLOAT16 = 2, INT8 = 4, INT16 = 5, INT32 = 6, INT64 = 7, UINT8 = 8, BOOL = 9;

struct Tensor {
  uint64_t at;  // 0: there is none
  int dtype;
  int rank;
  int dims[8];
  int strides[8];
};

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Step {
  int64_t integers[16];
  float numbers[8];
  Tensor tensors[];
};

const uint NONE = 0xffffffffu;
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Faults {
  uint step;  // NONE while there is no fault
  uint kind;
  int64_t facts[4];
};

layout(push_constant, scalar) uniform Push {
  Step step;
  Faults faults;
  uint number;  // of the step
  uint op;
  uint count;  // how many results, rows or the like there are
} push;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Halves { float16_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Shorts { int16_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Longs { int64_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Bytes { int8_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Marks { uint8_t at[]; };

// After a fault, later steps do nothing.
bool stopped() { return push.faults.step < push.number; }

// The numbers of binding.py. The first of a step counts.
const uint CACHE_OVERFLOW = 1, INDEX_OUT_OF_RANGE = 2, ROW_LENGTH_OUT_OF_RANGE = 3, BAD_LENGTH = 4;

void refuse(uint kind, int64_t a, int64_t b, int64_t c, int64_t d) {
  if (atomicCompSwap(push.faults.step, NONE, push.number) != NONE) return;
  push.faults.kind = kind;
  push.faults.facts[0] = a;
  push.faults.facts[1] = b;
  push.faults.facts[2] = c;
  push.faults.facts[3] = d;
}

float load(Tensor t, int offset) {
  switch (t.dtype) {
    case FLOAT32: return Floats(t.at).at[offset];
    case FLOAT16: return float(Halves(t.at).at[offset]);
    case INT64: return float(Longs(t.at).at[offset]);
    case INT32: return float(Words(t.at).at[offset]);
    case INT8: return float(Bytes(t.at).at[offset]);
    default: return float(Marks(t.at).at[offset]);
  }
}

// Of what is known to be float32, without a choice for each element.
float load_float(Tensor t, int offset) { return Floats(t.at).at[offset]; }
void store_float(Tensor t, int offset, float value) { Floats(t.at).at[offset] = value; }

int64_t load_whole(Tensor t, int offset) {
  switch (t.dtype) {
    case INT64: return Longs(t.at).at[offset];
    case INT32: return int64_t(Words(t.at).at[offset]);
    case INT16: return int64_t(int(Shorts(t.at).at[offset]));
    case INT8: return int64_t(Bytes(t.at).at[offset]);
    default: return int64_t(Marks(t.at).at[offset]);
  }
}

// Integers wrap around.
void store_whole(Tensor t, int offset, int64_t value) {
  switch (t.dtype) {
    case FLOAT32: Floats(t.at).at[offset] = float(value); break;
    case INT64: Longs(t.at).at[offset] = value; break;
    case INT32: Words(t.at).at[offset] = int(value); break;
    case INT16: Shorts(t.at).at[offset] = int16_t(int(value)); break;
    case INT8: Bytes(t.at).at[offset] = int8_t(value); break;
    case UINT8: Marks(t.at).at[offset] = uint8_t(value); break;
    case BOOL: Marks(t.at).at[offset] = uint8_t(value != 0 ? 1 : 0); break;
  }
}

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// The bits of the nearest float16, of two the even one. Drivers may round in other ways.
uint half_bits(float value) {
  uint bits = floatBitsToUint(value), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return sign | 0x7e00u;
  if (size >= 0x477ff000u) return sign | 0x7c00u;  // from 65520 on
  if (size >= 0x38800000u) return sign | ((size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13);
  if (size <= 0x33000000u) return sign;  // half of the least subnormal, or less
  uint shift = 126u - (size >> 23), whole = ((size & 0x007fffffu) | 0x00800000u);
  uint rest = whole & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
  whole >>= shift;
  return sign | (whole + (rest > tie || (rest == tie && (whole & 1u) != 0u) ? 1u : 0u));
}

// A float as an integer: towards zero; what does not fit is 0.
void store(Tensor t, int offset, float value) {
  switch (t.dtype) {
    case FLOAT32: Floats(t.at).at[offset] = value; break;
    case FLOAT16: Shorts(t.at).at[offset] = int16_t(int(half_bits(value))); break;
    case BOOL: Marks(t.at).at[offset] = uint8_t(value != 0.0 ? 1 : 0); break;
    case INT64: {
      bool fits = value >= -9223372036854775808.0 && value < 9223372036854775808.0;
      Longs(t.at).at[offset] = fits ? int64_t(value) : int64_t(0);
      break;
    }
    default: {
      bool fits = value >= -2147483648.0 && value < 2147483648.0;
      store_whole(t, offset, fits ? int64_t(value) : int64_t(0));
    }
  }
}

// Where the element of a nth index lies, counted over the first `rank` of some dims.
int offset_of(uint nth, int rank, int dims[8], int strides[8]) {
  int found = 0;
  for (int d = rank - 1; d >= 0; --d) {
    uint size = uint(dims[d]);
    found += int(nth % size) * strides[d];
    nth /= size;
  }
  return found;
}

int place(Tensor t, uint nth) { return offset_of(nth, t.rank, t.dims, t.strides); }

// Each shader states its workgroup's size before it includes this.
uint first_item() { return gl_GlobalInvocationID.x; }
uint all_items() { return gl_NumWorkGroups.x * gl_WorkGroupSize.x; }
