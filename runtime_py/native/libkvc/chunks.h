// Splits prompts into calls: `runtime_py/calls/chunks.py` in C++.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace kvc::lib {

// The token counts that a method takes: `least`, `least + step`, ... `most`; or `among`.
struct ChunkSizes {
  int method;
  int64_t least, most, step;
  std::vector<int64_t> among;

  int64_t greatest(int64_t count) const;
};

// The tokens of one call of a method.
struct Chunk {
  int method;
  int64_t count;

  bool operator==(const Chunk& other) const {
    return method == other.method && count == other.count;
  }
};

// The counts of a method whose first input has tokens, int64 [batch, seq]. `longest` is the most
// of a call.
ChunkSizes chunk_sizes(const Program& program, int method, int64_t longest);
// The calls that run a prompt: as few as possible, of counts as equal as possible. `last` takes
// what prefills leave, such as decode.
std::vector<Chunk> plan_chunks(int64_t count, const std::vector<ChunkSizes>& prefills,
                               const ChunkSizes& last);

}  // namespace kvc::lib
