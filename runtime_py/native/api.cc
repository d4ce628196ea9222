// The C interface: bind names to kernels, run a list of steps.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "checks.h"
#include "kernels.h"
#include "pool.h"
#include "processor.h"

#if defined(_WIN32)
#define KVC_API extern "C" __declspec(dllexport)
#else
#define KVC_API extern "C" __attribute__((visibility("default")))
#endif

namespace kvc {
namespace {

const std::vector<Entry>& kernels() {
  static const std::vector<Entry>* const all = [] {
    auto* found = new std::vector<Entry>;
    for (const Entry* family :
         {kElementwise, kUnary, kBinary, kActivations, kBessel, kSpecial, kFused, kCopies,
          kIndices, kReductions, kSums, kRows, kScans, kRanks, kMoves, kSearches,
          kLinearAlgebra, kDecompositions, kCaches, kProducts, kQuantizedProducts, kExperts,
          kAdapters, kAttention, kPlainAttention, kConvolutions, kConvolutionPairs, kPools, kResizing,
          kSampling, kChannelNorms, kLibraries}) {
      for (; family->name != nullptr; ++family) found->push_back(*family);
    }
    return found;
  }();
  return *all;
}

constexpr std::align_val_t kAlign{64};

struct Block {
  void* data = nullptr;
  size_t nbytes = 0;
  ~Block() { ::operator delete(data, kAlign); }
};

}  // namespace

void* find_workspace(size_t nbytes, int slot) {
  thread_local Block blocks[5];
  Block& block = blocks[slot];
  if (nbytes > SIZE_MAX / 2) return nullptr;
  if (block.nbytes < nbytes || block.data == nullptr) {
    ::operator delete(block.data, kAlign);
    const size_t whole = (nbytes + 4096) / 4096 * 4096;
    block.data = ::operator new(whole, kAlign, std::nothrow);
    block.nbytes = block.data != nullptr ? whole : 0;
  }
  return block.data;
}

}  // namespace kvc

// Version of this interface; `kvc.runtime.native` has the same.
KVC_API int32_t kvc_version() { return 11; }

// Names of the instruction sets that kernels can use here, least first, each with a space
// after it.
KVC_API const char* kvc_processors() { return kvc::processors(); }

// Makes kernels use one of these from now on: 0, or -1 where it is none of them.
KVC_API int32_t kvc_use_processor(const char* name) { return kvc::use_processor(name) ? 0 : -1; }

// The number of an op's kernel, -1 where it has none. None has one where the library was
// compiled for instruction sets alone that this processor lacks.
KVC_API int32_t kvc_kernel(const char* name) {
  if (*kvc::processors() == 0) return -1;
  const auto& all = kvc::kernels();
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::strcmp(all[i].name, name) == 0) return static_cast<int32_t>(i);
  }
  return -1;
}

// The name of the op of a kernel, null where there is no such kernel.
KVC_API const char* kvc_kernel_name(int32_t number) {
  const auto& all = kvc::kernels();
  return number >= 0 && number < static_cast<int32_t>(all.size()) ? all[number].name : nullptr;
}

// Checks steps before they are first run, see checks.h: returns `count`, or the index of the first
// that no kernel may run, with why in `breach`.
KVC_API int32_t kvc_check_steps(const kvc::Step* steps, const kvc::SettingCounts* counts,
                                int32_t count, const kvc::Region* regions, int32_t region_count,
                                kvc::Breach* breach) {
  const auto& all = kvc::kernels();
  const bool right = kvc::check_steps(all.data(), static_cast<int32_t>(all.size()), steps, counts,
                                      count, regions, region_count, breach);
  return right ? count : breach->step;
}

// Runs steps from `first` on, and returns the index of the next one to run: `count` after
// the last; an earlier one when `milliseconds` are over, so that the caller can look
// whether it was interrupted; or that of the step that failed, with why in `failure`.
// Kernels compute with the threads that are `lent`, where there are any. When each step has
// ended is written to `ended`, in nanoseconds of the steady clock, unless it is null.
KVC_API int32_t kvc_run(const kvc::Step* steps, int32_t count, int32_t first, int32_t threads,
                        int32_t milliseconds, kvc::Failure* failure, const kvc::Lent* lent,
                        int64_t* ended) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
  const auto& all = kvc::kernels();
  std::atomic<size_t> lacking{0};
  const kvc::Context context{threads, failure, &lacking, ended != nullptr};
  const kvc::Borrowing borrowing(lent);
  failure->fault = kvc::Fault::kNone;
  for (int32_t i = first; i < count; ++i) {
    failure->step = i;
    if (!all[steps[i].kernel].kernel(steps[i], context)) return i;
    if (ended != nullptr) {
      const auto now = Clock::now().time_since_epoch();
      ended[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    }
    const bool library = all[steps[i].kernel].kernel == kvc::kLibraries[0].kernel;
    if ((library || (i & 7) == 7) && Clock::now() >= end) return i + 1;
  }
  return count;
}
