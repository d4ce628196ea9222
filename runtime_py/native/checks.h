// Checks of steps that were not made here, before they are first run.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace kvc {

// A part of memory that steps may read, and perhaps write. At least kSpareBytes after it can be
// read, too.
struct Region {
  uintptr_t begin, end;
  int32_t writable;  // 0 or 1
};

constexpr int64_t kSpareBytes = 4096;

// How many integers and numbers a step has.
struct SettingCounts {
  int32_t integers, numbers;
};

// The first rule that a step breaks. `operand` is -1 where it is not one alone.
struct Breach {
  int32_t step, operand;
  const char* rule;  // null where none is broken
  int64_t facts[2];
};

// Returns whether a kernel may run each of these steps: it then reads and writes nothing outside
// of the regions that its operands lie in, whatever their elements are, and divides no integer by
// zero. `regions` are sorted by where they begin, and none lies over another.
bool check_steps(const Entry* kernels, int32_t kernel_count, const Step* steps,
                 const SettingCounts* counts, int32_t count, const Region* regions,
                 int32_t region_count, Breach* breach);

}  // namespace kvc
