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

  // The first list of a method for sizes of all symbols; null where there is none.
  const ListEntry* find(int method, const Sizes& sizes) const;
};

// Checks tables and names kernels; fails as KVC_DAMAGED. Lists for other kernels are not checked,
// since nothing of them is used but the version.
BoundTables read_bounds(const stored::Bounds& table, const Program& program);

// The value of each form at sizes of all symbols. False where the parts of one that follows sizes,
// without their signs, are 2**61 or more. `products` is memory for values between.
bool evaluate_forms(const stored::Bounds& table, const Sizes& sizes,
                    std::vector<int64_t>* products, std::vector<int64_t>* values);

}  // namespace kvc::lib
