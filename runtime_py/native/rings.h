// Where positions lie in a cache, linear or a ring; see kvc.schema.rings.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvc {

// The slot of a position in a ring that keeps the first `keep` positions where they are.
inline int64_t slot_of(int64_t position, int64_t slots, int64_t keep) {
  if (position >= 0 && position < keep) return position;
  const int64_t turning = slots - keep, turned = (position - keep) % turning;
  return keep + (turned < 0 ? turned + turning : turned);
}

// Calls function(done, slot, count) for the runs of slots of `count` positions.
template <class F>
void for_slot_runs(int64_t first, int64_t count, int64_t slots, bool circular, int64_t keep,
                   const F& function) {
  for (int64_t done = 0; done < count;) {
    const int64_t slot = circular ? slot_of(first + done, slots, keep) : first + done;
    int64_t run = std::min(count - done, slots - slot);
    if (circular && slot < keep && first + done >= 0) run = std::min(run, keep - slot);
    function(done, slot, run);
    done += run;
  }
}

}  // namespace kvc
