#include "processor.h"

#include <cstdlib>
#include <cstring>

namespace kvc {

Processor processor() {
  static const Processor found = [] {
    const char* asked = std::getenv("KVC_PROCESSOR");
    if (asked != nullptr && std::strcmp(asked, "portable") == 0) return Processor::kPortable;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c")) {
      return Processor::kAvx2;
    }
#endif
    return Processor::kPortable;
  }();
  return found;
}

}  // namespace kvc
