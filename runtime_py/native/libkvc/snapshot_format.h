// What writing and reading the files of sessions share.
#pragma once

#include <string>
#include <vector>

#include "state_memory.h"

namespace kvc::lib {

constexpr char kSnapshotMagic[9] = "\x89KVCS\r\n\n";
constexpr uint32_t kSnapshotVersion = 1;
constexpr size_t kLead = 20, kDigest = 32, kMostHeader = 64 << 20;
constexpr int64_t kMostPosition = int64_t{1} << 62;  // the greatest position, length or token

// What is saved of each state: as many slots as may differ from their initial content.
struct Marks {
  std::vector<int64_t> lengths;
  int64_t written = 0;
  Rows reached;
};

// Whether it is a cache whose slots after the position are unused.
bool is_linear(const Kind& kind);
// The slots of a state that are saved.
Span saved_span(const Kind& kind, size_t state, const Marks& marks);
// Numbers as JSON.
std::string list_of(const Rows& numbers);
// The entry of a state in the header, as Python writes it.
std::string describe(const Kind& kind, const Span& span);

}  // namespace kvc::lib
