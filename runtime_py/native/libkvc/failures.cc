// As `runtime_py/delegates/cpu/failures.py`. A list does not say which instruction a step is of,
// so errors name the step.
#include "failures.h"

#include "errors.h"

namespace kvc::lib {

void refuse_step(const std::string& method, const Failure& failure) {
  const std::string where = text_of("method %s, step %d", shown(method).c_str(), failure.step);
  const char* at = where.c_str();
  const auto fact = [&](int i) { return static_cast<long long>(failure.facts[i]); };
  switch (failure.fault) {
    case Fault::kIndexOutOfRange:
      fail(KVC_INDEX_OUT_OF_RANGE, "%s: the index %lld is outside of 0..%lld", at, fact(0),
           fact(1) - 1);
    case Fault::kCacheOverflow:
      fail(KVC_CACHE_OVERFLOW, "%s: the cache is full: row %lld holds %lld tokens, %lld more do "
           "not fit into %lld", at, fact(0), fact(1), fact(2), fact(3));
    case Fault::kRowLengthOutOfRange:
      fail(KVC_INPUT_MISMATCH, "%s: row %lld has %lld tokens, expected 0 to %lld", at, fact(0),
           fact(1), fact(2));
    case Fault::kBadLength:
      fail(KVC_KERNEL_FAILED, "%s: row %lld has %lld valid positions, the cache has %lld", at,
           fact(0), fact(1), fact(2));
    case Fault::kNoMemory:
      fail(KVC_OUT_OF_MEMORY, "%s: no memory for %lld bytes; close sessions or other programs", at,
           fact(0));
    case Fault::kNothingToReduce:
      fail(KVC_KERNEL_FAILED, "%s: there is no greatest or least of no elements", at);
    case Fault::kDivisionByZero:
      fail(KVC_KERNEL_FAILED, "%s: an integer is divided by zero", at);
    case Fault::kNotTrue:
      fail(KVC_KERNEL_FAILED, "%s: a condition that the model asserts does not hold", at);
    case Fault::kBadOffsets:
      fail(KVC_KERNEL_FAILED, "%s: offsets must rise from 0 to at most %lld", at, fact(0));
    case Fault::kSingular:
      fail(KVC_KERNEL_FAILED, "%s: matrix %lld is singular or not positive-definite, at place %lld",
           at, fact(0), fact(1));
    default:
      fail(KVC_KERNEL_FAILED, "%s: the kernel refused, for reason %d", at,
           static_cast<int>(failure.fault));
  }
}

}  // namespace kvc::lib
