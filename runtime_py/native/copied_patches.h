// Patches as they lie in a copy of the input with the zeros around it.
#pragma once

#include "convolution.h"

namespace kvc {

constexpr int64_t kDepthTogether = 128;  // rows of a panel that are packed at a time
constexpr int64_t kCopySlack = 32;  // elements after a copy, and after panels, for whole vectors

// Packs patches of outputs `first` to `first + count`, from a copy of what they read where there is
// less to copy than patches have.
class PatchCopy {
 public:
  PatchCopy(const Patches& patches, int64_t first, int64_t count);

  // Of the copy for so many rows of the patches.
  int64_t elements(int64_t depth) const { return channels(depth) * elements_ + kCopySlack; }
  // Copies what rows `begin` to `end` read; `begin` is the first row of a channel.
  void read(int64_t begin, int64_t end, float* to);
  // Packs columns `first` and following of the rows that were read, panel after panel.
  void pack(int64_t first, int64_t count, float* to) const;

 private:
  int64_t channels(int64_t depth) const { return elements_ != 0 ? (depth + taps_ - 1) / taps_ : 0; }
  bool find_size();
  void find_offsets();

  static constexpr int64_t kMostTaps = kDepthTogether;  // so that whole channels are read
  static constexpr int64_t kMostPhases = 16;

  const Patches& patches_;
  int64_t taps_, first_, count_;
  int64_t planes_ = 0, lines_ = 0, phases_ = 0, run_ = 0;
  int64_t begins_[2] = {};  // the first place of the outputs along the first two axes
  int64_t elements_ = 0;  // of a channel's copy, 0 without one
  int64_t rows_[2] = {};  // that were read
  int64_t offsets_[kMostTaps];
  CopiedPatches copied_{};
};

}  // namespace kvc
