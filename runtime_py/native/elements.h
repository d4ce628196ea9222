// Runs of elements of several tensors side by side, shared among threads.
#pragma once

#include <algorithm>

#include "pool.h"
#include "tensor.h"

namespace kvc {

constexpr int64_t kGrain = 16384;  // elements that are worth another thread

// Calls function(offsets, n) for pieces of runs of the innermost dim; `grain` elements are
// worth another thread.
template <int N, class F>
void for_runs(const Loop<N>& loop, int64_t grain, int threads, const F& function) {
  const int64_t inner = loop.inner(), runs = loop.runs();
  if (runs == 1) {
    parallel(inner, grain, threads, [&](int64_t begin, int64_t end, int) {
      int64_t offsets[N];
      for (int i = 0; i < N; ++i) offsets[i] = begin * loop.step(i);
      function(offsets, end - begin);
    });
    return;
  }
  const int64_t long_enough = std::max<int64_t>(1, grain / std::max<int64_t>(1, inner));
  parallel(runs, long_enough, threads, [&](int64_t begin, int64_t end, int) {
    int64_t offsets[N];
    for (int64_t run = begin; run < end; ++run) {
      loop.start(run, offsets);
      function(offsets, inner);
    }
  });
}

}  // namespace kvc
