// Contracts: what kernels assume of their operands together.
//
// A step of a file is checked before its list is first run, so that no kernel reads or writes
// outside its operands. What each operand is by itself is checked in checks.cc; before a contract
// is asked, ranks are 0 to 8, dims and strides at least 0, what lies after the rank 0, elements
// at most kMostCount, and an operand that is left out has no dims.
#pragma once

#include <cstdint>

#include "tensor.h"

namespace kvc {

struct Step;

// Elements of an operand, those that are repeated too. So a product of the counts of an operand
// and some bytes lies within int64.
constexpr int64_t kMostCount = int64_t{1} << 36;
constexpr int64_t kMostSetting =
    (int64_t{1} << 31) - 1;                         // of distances and sizes that are settings
constexpr int64_t kMostProduct = int64_t{1} << 58;  // of sizes that are multiplied

// Sets of dtypes, as bits.
using DTypes = uint32_t;
constexpr DTypes only(DType dtype) { return 1u << static_cast<int>(dtype); }
constexpr DTypes kFloat = only(DType::kFloat32);
constexpr DTypes kBools = only(DType::kBool);
constexpr DTypes kWideFloats = kFloat | only(DType::kFloat64);  // those of `with_float`
constexpr DTypes kHalves = only(DType::kFloat16) | only(DType::kBFloat16);
constexpr DTypes kPlaces = only(DType::kInt32) | only(DType::kInt64);
constexpr DTypes kNumbers = kWideFloats | kPlaces | kBools;  // those of `with_number`
constexpr DTypes kNarrow = only(DType::kInt16) | only(DType::kInt8) | only(DType::kUInt8);
constexpr DTypes kTypes = kNumbers | kNarrow;  // those of `with_type`
constexpr DTypes kAll = kTypes | kHalves;

// A step while its contract is checked. Each function returns whether a rule holds, and notes
// the first that does not.
class Check {
 public:
  const Step& step;
  const int64_t integer_count, number_count;  // of the step
  int results = 0;                            // leading tensors that the kernel writes
  uint64_t steering = 0;       // operands whose values tell the kernel where to read or write
  bool in_place = false;       // whether these may be the result itself
  const char* rule = nullptr;  // that is broken
  int64_t facts[2] = {0, 0};

  Check(const Step& step, int64_t integers, int64_t numbers)
      : step(step), integer_count(integers), number_count(numbers) {}

  const Tensor& operator[](int i) const;
  int64_t integer(int64_t i) const;
  double number(int64_t i) const;

  // `rule` tells what is wrong where it does not hold.
  bool holds(bool held, const char* broken, int64_t a = 0, int64_t b = 0) {
    if (!held && rule == nullptr) {
      rule = broken;
      facts[0] = a;
      facts[1] = b;
    }
    return held;
  }

  // There are `count` tensors, the first `written` of them results, and all are there but those
  // whose bits are set in `optional`.
  bool operands(int written, int count, uint64_t optional = 0);
  // At least so many.
  bool settings(int64_t integers, int64_t numbers = 0);

  bool dtype(int i, DTypes dtypes);
  bool same_dtype(int i, int j);
  bool rank(int i, int least, int most = kMaxRank);
  bool packed(int i);
  bool same_shape(int i, int j);
  // Operand i can be repeated to the shape of j.
  bool fits(int i, int j);
  // All dims of i and j but the last `but` are the same, and so is their rank.
  bool same_leading(int i, int j, int but);
  bool size(int i, int axis, int64_t expected);
  bool count(int i, int64_t expected);
  // Integer `at` is an axis of `rank`, or of a tensor without axes 0 or -1; `found`, unless it is
  // null, becomes the axis from 0 on.
  bool axis(int64_t at, int rank, int* found = nullptr);
  bool between(int64_t at, int64_t least, int64_t most);
  // A list is at integer *at: its length, `least` to `most`, and as many numbers; *at becomes what
  // follows it.
  bool list(int64_t* at, int64_t least, int64_t most);
  // A list of axes is at integer *at, or kAbsent.
  bool axes(int64_t* at, int rank);
  // Operand i has indices or lengths that the kernel checks while it runs.
  bool index(int i, DTypes dtypes = kPlaces);
  // A vector of so many elements that lie together, of some dtypes; or nothing.
  bool vector_or_none(int i, int64_t size, DTypes dtypes);

  // Several of these: results and operands of one dtype, shape, without gaps.
  bool alike(int i, int j) { return same_dtype(i, j) && same_shape(i, j); }
  bool both_packed(int i, int j) { return packed(i) && packed(j); }
};

// Whether a kernel may run, as far as its operands together tell.
using Contract = bool (*)(Check& check);

// For kernels that no file may ask for.
bool never_from_files(Check& check);

// Whether the dims of `one` are those of `other`, or 1, from the last on.
bool repeats_to(const Tensor& one, const Tensor& other);

// a * b, or more than kMostProduct; neither is negative.
inline int64_t bounded_product(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kMostProduct / b ? kMostProduct + 1 : a * b;
}

}  // namespace kvc
