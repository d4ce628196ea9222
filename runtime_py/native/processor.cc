#include "processor.h"

#include <atomic>
#include <string>
#include <vector>

#include "products.h"

#if defined(KVC_HAS_NEON_DOT)
#include <sys/auxv.h>
#endif

namespace kvc {
namespace {

struct InstructionSet {
  std::string name;
  const ProductKernels* kernels;
};

#if defined(KVC_HAS_AVX2_AND_VNNI)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_vnni() {
#if defined(KVC_EMULATED)
  return true;
#else
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#endif
}
#endif

#if defined(KVC_HAS_NEON_DOT)
bool has_neon_dot() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#endif

// Least first.
const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet>* const all = [] {
    auto* found = new std::vector<InstructionSet>{{"portable", &kPortableProducts}};
#if defined(KVC_HAS_AVX2_AND_VNNI)
    if (has_avx2()) found->push_back({"avx2", &kAvx2Products});
    if (has_vnni()) found->push_back({"avx512_vnni", &kVnniProducts});
#endif
#if defined(KVC_HAS_NEON)
    found->push_back({"neon", &kNeonProducts});
#endif
#if defined(KVC_HAS_NEON_DOT)
    if (has_neon_dot()) found->push_back({"neon_dot", &kNeonDotProducts});
#endif
    return found;
  }();
  return *all;
}

std::atomic<const ProductKernels*>& used() {
  static std::atomic<const ProductKernels*> kernels{instruction_sets().back().kernels};
  return kernels;
}

}  // namespace

const char* processors() {
  static const std::string* const names = [] {
    auto* found = new std::string;
    for (const auto& set : instruction_sets()) *found += set.name + " ";
    return found;
  }();
  return names->c_str();
}

bool use_processor(const char* name) {
  for (const auto& set : instruction_sets()) {
    if (set.name != name) continue;
    used().store(set.kernels, std::memory_order_relaxed);
    return true;
  }
  return false;
}

const ProductKernels& product_kernels() { return *used().load(std::memory_order_relaxed); }

}  // namespace kvc
