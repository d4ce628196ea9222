#include "processor.h"

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvc {
namespace {

#if defined(__x86_64__)
// What compilers before GCC 11 do not know by name.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

Processor processor() {
  static const Processor found = [] {
    const char* asked = std::getenv("KVC_PROCESSOR");
    if (asked != nullptr && std::strcmp(asked, "portable") == 0) return Processor::kPortable;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
      return Processor::kAvx2;
    }
#endif
    return Processor::kPortable;
  }();
  return found;
}

}  // namespace kvc
