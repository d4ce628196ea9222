// Patches as they lie in a copy of the input with the zeros around it.
#pragma once

#include "convolution.h"

namespace kvc {

constexpr int64_t kCopySlack = 32;  // elements after a copy, and after panels, for whole vectors

// The copy of what outputs `first` to `first + count` read.
class PatchCopy {
 public:
  PatchCopy(const Patches& patches, int64_t first, int64_t count);

  // Whether there is less to copy than patches have.
  bool pays() const { return elements_ != 0; }
  // Of so many rows of the patches.
  int64_t elements(int64_t depth) const { return pays() ? channels(0, depth) * elements_ : 0; }
  // Copies what rows `begin` to `end` read; `begin` is the first row of a channel.
  void read(int64_t begin, int64_t end, float* to);
  // Packs columns `first` and following of the rows that were read.
  void pack(int64_t first, int64_t columns, float* to) const;

 private:
  int64_t channels(int64_t begin, int64_t end) const { return (end - begin + taps_ - 1) / taps_; }
  bool find_size();
  void find_offsets();

  static constexpr int64_t kMostTaps = 256;  // of kernels that are worth it
  static constexpr int64_t kMostPhases = 16;

  const Patches& patches_;
  int64_t taps_, first_, count_;
  int64_t planes_ = 0, lines_ = 0, phases_ = 0, run_ = 0;
  int64_t begins_[2];  // the first place of the outputs along the first two axes
  int64_t elements_ = 0;  // of a channel
  int64_t depth_ = 0;     // rows that were read
  int64_t offsets_[kMostTaps];
  CopiedPatches copied_{};
};

}  // namespace kvc
