// Runs of elements of several tensors side by side, shared among threads.
#pragma once

#include <algorithm>

#include "pool.h"
#include "tensor.h"

namespace kvc {

constexpr int64_t kGrain = 16384;  // elements that are worth another thread

// A piece of a run of the innermost dim: where it begins in each tensor, and its length.
template <int N>
using Piece = void (*)(const void* context, const int64_t (&offsets)[N], int64_t n);

// Calls `piece` for pieces of runs; `grain` elements are worth another thread. Compiled once
// for each N, not for each kernel.
template <int N>
[[gnu::noinline]] void run_pieces(const Loop<N>& loop, int64_t grain, int threads, Piece<N> piece,
                                  const void* context) {
  const int64_t inner = loop.inner(), runs = loop.runs();
  if (runs == 1) {
    parallel(inner, grain, threads, [&](int64_t begin, int64_t end, int) {
      int64_t offsets[N];
      for (int i = 0; i < N; ++i) offsets[i] = begin * loop.step(i);
      piece(context, offsets, end - begin);
    });
    return;
  }
  const int64_t long_enough = std::max<int64_t>(1, grain / std::max<int64_t>(1, inner));
  parallel(runs, long_enough, threads, [&](int64_t begin, int64_t end, int) {
    int64_t offsets[N];
    for (int64_t run = begin; run < end; ++run) {
      loop.start(run, offsets);
      piece(context, offsets, inner);
    }
  });
}

// As `run_pieces`, with a function object called with (offsets, n).
template <int N, class F>
void for_runs(const Loop<N>& loop, int64_t grain, int threads, const F& function) {
  run_pieces<N>(
      loop, grain, threads,
      [](const void* context, const int64_t (&offsets)[N], int64_t n) {
        (*static_cast<const F*>(context))(offsets, n);
      },
      &function);
}

}  // namespace kvc
