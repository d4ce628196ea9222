// The check of a list's steps against the contracts of kernels, before it is first run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../checks.h"
#include "../kernels.h"

namespace kvc::lib {

// Memory that steps may use, and how many integers and numbers each has.
class StepChecks {
 public:
  void clear();
  void add_step(uint32_t integers, uint32_t numbers);
  // Bytes that steps may read, and if `writable` write. None lies over another.
  void add_region(const void* begin, int64_t nbytes, bool writable);

  // Fails as KVC_DAMAGED if a kernel may not run one of the steps.
  void run(const std::vector<Step>& steps, const std::string& method);
  // Whether one of the first `count` steps writes into the region that begins at an address.
  bool is_written(const std::vector<Step>& steps, int32_t count, const void* begin) const;

 private:
  std::vector<SettingCounts> counts_;
  std::vector<Region> regions_;
};

}  // namespace kvc::lib
