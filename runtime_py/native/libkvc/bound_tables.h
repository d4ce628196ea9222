// The tables of bound lists, after a check of every id and run: `schema/verify/bounds.py` in C++.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace kvc::stored {
struct Bounds;
struct BoundList;
}  // namespace kvc::stored

namespace kvc::lib {

enum class Region : uint8_t { kAbsent, kConstant, kState, kScratch, kCursor, kCaller, kFilled };

struct ListEntry {
  const stored::BoundList* table;
  int method;
  uint64_t scratch_nbytes;
};

struct BoundTables {
  uint32_t kernels_version = 0;
  const stored::Bounds* table = nullptr;
  std::vector<int32_t> kernels;  // numbers of the library's
  std::vector<ListEntry> lists;
  uint64_t scratch_nbytes = 0;  // the most of all lists

  // The first list of a method for sizes; null where there is none. Unknown sizes are of symbols
  // that the method does not have.
  const ListEntry* find(int method, const Sizes& sizes) const;
  // The bounds of one symbol in the lists of a method that include all other sizes.
  std::vector<std::pair<int64_t, int64_t>> bounds_of(int method, const Sizes& sizes,
                                                     uint32_t symbol) const;
};

// Checks tables and names kernels; fails as KVC_DAMAGED. Lists for other kernels are not checked,
// since nothing of them is used but the version.
BoundTables read_bounds(const stored::Bounds& table, const Program& program);

// No form has this value; kUnknown is one that a step may have, of an argument left out.
constexpr int64_t kNoValue = kUnknown + 1;

// The value of each form at some sizes; kNoValue where it has too many bits or a size is unknown.
// `products` is memory for values between.
void evaluate_forms(const stored::Bounds& table, const Sizes& sizes,
                    std::vector<int64_t>* products, std::vector<int64_t>* values);

}  // namespace kvc::lib
