// What a kernel gets, and the table of all kernels.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#include "contracts.h"
#include "tensor.h"

namespace kvc {

// Why a kernel refused; the numbers of kvc.runtime.native. One that lacks memory may have
// written a part of its results, any other has written nothing.
enum class Fault : int32_t {
  kNone = 0,
  kIndexOutOfRange = 1,  // index, size
  kCacheOverflow = 2,    // row, start, count, capacity
  kRowLengthOutOfRange = 3,  // row, count, most
  kBadLength = 4,        // length, slots
  kNoMemory = 5,         // bytes
  kNothingToReduce = 6,
  kLibraryFailed = 7,    // its status
  kDivisionByZero = 8,
  kNotTrue = 9,
  kBadOffsets = 10,      // greatest that there may be
  kSingular = 11,        // matrix, or -1 of a single one; place on its diagonal, from 1
};

struct Failure {
  Fault fault;
  int32_t step;
  int64_t facts[4];
};

// An instruction, bound: tensors are results first, then arguments, in the order of the
// op's signature. An int, or a list of them with its length in front, is in `integers`; a
// float in `numbers`; a Scalar in both, as 0 where it is no int64. What is left out is
// kAbsent, or NaN; a Scalar is both.
struct Step {
  int32_t kernel;
  int32_t tensor_count;
  const Tensor* tensors;
  const int64_t* integers;
  const double* numbers;
};

constexpr int64_t kAbsent = std::numeric_limits<int64_t>::min();

// Memory of a thread for values between; it stays until the thread needs more. Null where
// there is none.
void* find_workspace(size_t nbytes, int slot);

// What a kernel computes with beside its operands.
struct Context {
  int threads;
  Failure* failure;
  std::atomic<size_t>* lacking;  // bytes that a thread of the kernel asked for in vain; 0
  bool recorded;  // whether somebody wants to know when each step has ended

  // Memory as `find_workspace` gives it. Where there is none, `complete` is false afterwards.
  void* workspace(size_t nbytes, int slot = 0) const {
    void* found = find_workspace(nbytes, slot);
    if (found == nullptr) lacking->store(nbytes);
    return found;
  }

  // Whether all threads had their memory; else the kernel refuses. A kernel returns this.
  bool complete() const {
    const size_t nbytes = lacking->load();
    return nbytes == 0 || refuse(Fault::kNoMemory, static_cast<int64_t>(nbytes));
  }

  // Notes why the kernel refuses; a kernel returns this.
  bool refuse(Fault fault, int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    *failure = Failure{fault, failure->step, {a, b, c, d}};
    return false;
  }
};

// Returns false after `Context::refuse`.
using Kernel = bool (*)(const Step& step, const Context& context);

// `contract` tells whether a step that is given may run; see contracts.h.
struct Entry {
  const char* name;
  Kernel kernel;
  Contract contract;

  // Without a contract no kernel compiles.
  constexpr Entry(const char* name, Kernel kernel, Contract contract)
      : name(name), kernel(kernel), contract(contract) {}
};

// The kernels of each family, ended by an entry without a name.
extern const Entry kElementwise[];
extern const Entry kUnary[];
extern const Entry kBinary[];
extern const Entry kActivations[];
extern const Entry kBessel[];
extern const Entry kSpecial[];
extern const Entry kFused[];
extern const Entry kCopies[];
extern const Entry kReductions[];
extern const Entry kSums[];
extern const Entry kRows[];
extern const Entry kScans[];
extern const Entry kRanks[];
extern const Entry kMoves[];
extern const Entry kSearches[];
extern const Entry kLinearAlgebra[];
extern const Entry kDecompositions[];
extern const Entry kCaches[];
extern const Entry kIndices[];
extern const Entry kProducts[];
extern const Entry kQuantizedProducts[];
extern const Entry kExperts[];
extern const Entry kAdapters[];
extern const Entry kAttention[];
extern const Entry kPlainAttention[];
extern const Entry kConvolutions[];
extern const Entry kConvolutionPairs[];
extern const Entry kPools[];
extern const Entry kResizing[];
extern const Entry kSampling[];
extern const Entry kChannelNorms[];
extern const Entry kLibraries[];

}  // namespace kvc
