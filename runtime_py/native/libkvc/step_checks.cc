#include "step_checks.h"

#include <algorithm>

#include "errors.h"

// api.cc
extern "C" int32_t kvc_check_steps(const kvc::Step* steps, const kvc::SettingCounts* counts,
                                   int32_t count, const kvc::Region* regions, int32_t region_count,
                                   kvc::Breach* breach);

namespace kvc::lib {
namespace {

int32_t first_breach(const std::vector<Step>& steps, int32_t count,
                     const std::vector<SettingCounts>& counts, const std::vector<Region>& regions,
                     Breach* breach) {
  return kvc_check_steps(steps.data(), counts.data(), count, regions.data(),
                         static_cast<int32_t>(regions.size()), breach);
}

}  // namespace

void StepChecks::clear() {
  counts_.clear();
  regions_.clear();
}

void StepChecks::add_step(uint32_t integers, uint32_t numbers) {
  counts_.push_back({static_cast<int32_t>(integers), static_cast<int32_t>(numbers)});
}

void StepChecks::add_region(const void* begin, int64_t nbytes, bool writable) {
  const auto first = reinterpret_cast<uintptr_t>(begin);
  if (nbytes > 0) regions_.push_back({first, first + static_cast<uintptr_t>(nbytes), writable});
}

void StepChecks::run(const std::vector<Step>& steps, const std::string& method) {
  std::sort(regions_.begin(), regions_.end(),
            [](const Region& a, const Region& b) { return a.begin < b.begin; });
  Breach breach{};
  const auto count = static_cast<int32_t>(steps.size());
  if (first_breach(steps, count, counts_, regions_, &breach) == count) return;
  fail(KVC_DAMAGED,
       "the bound list of method %s: step %d breaks a rule of its kernel: %s (operand %d; %lld, "
       "%lld); the bundle was made to mislead, or by a kvc with a mistake",
       shown(method).c_str(), breach.step, breach.rule != nullptr ? breach.rule : "unknown",
       breach.operand, static_cast<long long>(breach.facts[0]),
       static_cast<long long>(breach.facts[1]));
}

bool StepChecks::is_written(const std::vector<Step>& steps, int32_t count,
                            const void* begin) const {
  std::vector<Region> regions = regions_;
  for (Region& region : regions) {
    if (region.begin == reinterpret_cast<uintptr_t>(begin)) region.writable = 0;
  }
  Breach breach{};
  return first_breach(steps, count, counts_, regions, &breach) < count;
}

}  // namespace kvc::lib
