#include "processor.h"

#include <atomic>
#include <string>
#include <vector>

#include "products.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(_WIN32)
#include <windows.h>
#endif

namespace kvc {
namespace {

struct InstructionSet {
  std::string name;
  const ProductKernels* kernels;
};

#if defined(__x86_64__)

// What the processor says of itself. `__builtin_cpu_supports` would do, but some libraries of
// compilers answer it with zeros.
struct Cpuid {
  unsigned a = 0, b = 0, c = 0, d = 0;

  explicit Cpuid(unsigned leaf) { __get_cpuid_count(leaf, 0, &a, &b, &c, &d); }
};

// Whether the system keeps all these parts of the registers when threads take turns.
bool keeps(unsigned parts) {
  constexpr unsigned kXgetbv = 1u << 27;
  if ((Cpuid(1).c & kXgetbv) == 0) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & parts) == parts;
}

bool has_avx2() {
  constexpr unsigned kFma = 1u << 12, kAvx = 1u << 28, kF16c = 1u << 29, kAvx2 = 1u << 5;
  constexpr unsigned kAll = kFma | kAvx | kF16c;
  return (Cpuid(1).c & kAll) == kAll && (Cpuid(7).b & kAvx2) != 0 && keeps(6);
}

[[maybe_unused]] bool has_vnni() {
#if defined(KVC_EMULATED)
  return true;
#else
  constexpr unsigned kF = 1u << 16, kBw = 1u << 30, kVl = 1u << 31, kVnni = 1u << 11;
  const Cpuid of(7);
  return has_avx2() && (of.b & (kF | kBw | kVl)) == (kF | kBw | kVl) && (of.c & kVnni) != 0 &&
         keeps(0xE6);
#endif
}

#elif defined(KVC_HAS_NEON_DOT)

bool has_neon_dot() {
#if defined(__APPLE__)
  int found = 0;
  size_t nbytes = sizeof found;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &nbytes, nullptr, 0) == 0 &&
         found != 0;
#elif defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(_WIN32)
  constexpr DWORD kDotProducts = 43;  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
  return IsProcessorFeaturePresent(kDotProducts) != 0;
#else
  return false;
#endif
}

#endif

// Least first.
const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet>* const all = [] {
    auto* found = new std::vector<InstructionSet>;
#if defined(KVC_HAS_PORTABLE)
    found->push_back({"portable", &kPortableProducts});
#endif
#if defined(KVC_HAS_AVX2)
    if (has_avx2()) found->push_back({"avx2", &kAvx2Products});
#endif
#if defined(KVC_HAS_VNNI)
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
  static std::atomic<const ProductKernels*> kernels{
      instruction_sets().empty() ? nullptr : instruction_sets().back().kernels};
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
