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
