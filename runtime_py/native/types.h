// From a dtype to the C++ type of its elements.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor.h"

namespace kvc {

// An element that is read and written, and computed with as a float.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  // Rounded to nearest, halves to even; a NaN stays one.
  explicit BFloat16(float x) {
    uint32_t whole;
    std::memcpy(&whole, &x, sizeof whole);
    bits = x != x ? 0x7FC0 : static_cast<uint16_t>((whole + 0x7FFF + (whole >> 16 & 1)) >> 16);
  }
  explicit operator float() const {
    const uint32_t whole = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &whole, sizeof x);
    return x;
  }
};

// IEEE 754 binary16, which only caches are stored as; it is computed with as a float. The
// conversions have the bits of the F16C instructions, a NaN's too.
struct Half {
  uint16_t bits;

  Half() = default;
  // Rounded to nearest, halves to even; 65520 and more become infinite.
  explicit Half(float x) {
    uint32_t whole;
    std::memcpy(&whole, &x, sizeof whole);
    const uint32_t sign = whole >> 16 & 0x8000, size = whole & 0x7FFFFFFF;
    if (size > 0x7F800000) {  // NaN
      bits = static_cast<uint16_t>(sign | 0x7E00 | (size >> 13 & 0x3FF));
    } else if (size >= 0x47800000) {  // 2**16
      bits = static_cast<uint16_t>(sign | 0x7C00);
    } else if (size < 0x38800000) {  // 2**-14: multiples of 2**-24, as floats from 0.5 on are
      float aligned;
      std::memcpy(&aligned, &size, sizeof aligned);
      aligned += 0.5f;
      uint32_t steps;
      std::memcpy(&steps, &aligned, sizeof steps);
      bits = static_cast<uint16_t>(sign | (steps - 0x3F000000));
    } else {
      bits = static_cast<uint16_t>(sign | ((size - (112u << 23) + 0xFFF + (size >> 13 & 1)) >> 13));
    }
  }
  explicit operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, power = bits >> 10 & 31, rest = bits & 0x3FF;
    uint32_t whole = sign | (power + 112) << 23 | rest << 13;
    if (power == 31) whole = sign | 0x7F800000 | rest << 13 | (rest != 0 ? 0x400000 : 0);
    float x;
    std::memcpy(&x, &whole, sizeof x);
    if (power != 0) return x;
    x = static_cast<float>(rest) * 0x1p-24f;
    return sign != 0 ? -x : x;
  }
};

// Bytes of an element.
inline int64_t itemsize(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16: return 2;
    default: return 1;
  }
}

// Calls function with a value of the C++ type of a dtype that is computed with.
template <class F>
void with_number(DType dtype, const F& function) {
  switch (dtype) {
    case DType::kFloat32: return function(float{});
    case DType::kFloat64: return function(double{});
    case DType::kInt64: return function(int64_t{});
    case DType::kInt32: return function(int32_t{});
    case DType::kBool: return function(bool{});
    default: return;  // schema/backends/cpu.py takes no others
  }
}

// As `with_number`, with narrow integers too.
template <class F>
void with_type(DType dtype, const F& function) {
  switch (dtype) {
    case DType::kInt16: return function(int16_t{});
    case DType::kInt8: return function(int8_t{});
    case DType::kUInt8: return function(uint8_t{});
    default: return with_number(dtype, function);
  }
}

// As `with_number`, with floats alone.
template <class F>
void with_float(DType dtype, const F& function) {
  if (dtype == DType::kFloat32) function(float{});
  if (dtype == DType::kFloat64) function(double{});
}

// Calls function with a value as large as the elements of a dtype, to move them.
template <class F>
void with_size(DType dtype, const F& function) {
  switch (itemsize(dtype)) {
    case 8: return function(uint64_t{});
    case 4: return function(uint32_t{});
    case 2: return function(uint16_t{});
    default: return function(uint8_t{});
  }
}

}  // namespace kvc
