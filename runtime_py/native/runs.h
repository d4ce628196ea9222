// Functions of one operand that have a loop for each instruction set.
#pragma once

#include "maps.h"
#include "products.h"

namespace kvc {

// As `unary`, with a loop made for this processor where elements lie side by side; the
// arithmetic is the same.
template <class F, ProductKernels::Run ProductKernels::*kRun>
bool unary_runs(const Step& step, const Context& context) {
  const Tensor &out = step.tensors[0], &a = step.tensors[1];
  if (a.dtype != DType::kFloat32 || !out.packed() || !a.packed()) return unary<F>(step, context);
  const ProductKernels::Run run = product_kernels().*kRun;
  parallel(out.count(), kGrain, context.threads, [&](int64_t begin, int64_t end, int) {
    run(a.as<const float>() + begin, end - begin, out.as<float>() + begin);
  });
  return true;
}

}  // namespace kvc
