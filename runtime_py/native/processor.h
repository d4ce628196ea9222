// Which instruction set the kernels use.
#pragma once

namespace kvc {

enum class Processor { kPortable, kAvx2 };

// Found once, the first time that it is asked for. The variable KVC_PROCESSOR=portable
// makes it the least.
Processor processor();

inline const char* name_of(Processor found) {
  return found == Processor::kAvx2 ? "avx2" : "portable";
}

}  // namespace kvc
