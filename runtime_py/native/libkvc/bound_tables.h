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

  // The first list of a method for sizes, all of them known; null where there is none.
  const ListEntry* find(int method, const Sizes& sizes) const;
  // The bounds of one symbol in the lists of a method that include all other sizes.
  std::vector<std::pair<int64_t, int64_t>> bounds_of(int method, const Sizes& sizes,
                                                     uint32_t symbol) const;
};

// Checks tables and names kernels; fails as KVC_DAMAGED. Lists for other kernels are not checked,
// since nothing of them is used but the version.
BoundTables read_bounds(const stored::Bounds& table, const Program& program);

// All sizes of a call: one that neither its session nor its inputs say counts as the least that its
// symbol may have.
void fill_sizes(const Program& program, const Sizes& sizes, Sizes* full);

// The value of each form at some sizes, all of them known. False where one that follows sizes has
// too many bits. `products` is memory for values between.
bool evaluate_forms(const stored::Bounds& table, const Sizes& sizes,
                    std::vector<int64_t>* products, std::vector<int64_t>* values);

}  // namespace kvc::lib
