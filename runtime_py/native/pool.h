// The threads of a process that kernels compute with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc {

// A run of a kernel's work: items `begin` to `end`, on thread `thread` of those that run.
using Work = void (*)(const void* context, int64_t begin, int64_t end, int thread);

constexpr int kMaxThreads = 64;

// The threads of a library, which would otherwise wait for its next call while those here
// compute: `run` calls a task with the numbers 0 to `count` - 1 on the threads of `pool`.
struct Lent {
  void (*run)(void* pool, void (*task)(void*, size_t), void* context, size_t count,
              uint32_t flags);
  void* pool;
};

// While it lives, the calling thread has its work done by threads that are lent; null: by
// those of the process.
class Borrowing {
 public:
  explicit Borrowing(const Lent* lent);
  ~Borrowing();
  Borrowing(const Borrowing&) = delete;
  Borrowing& operator=(const Borrowing&) = delete;
};

// Runs `work` over all of `items`, in pieces of at most `grain`, on up to `threads`
// threads. Each begins with a share of its own and then takes pieces of the others'.
// Returns when all is done. A second caller at the same time works alone, and so does the
// child of a fork.
void run_parallel(int64_t items, int64_t grain, int threads, Work work, const void* context);

// As `run_parallel`, with a function object called with (begin, end, thread).
template <class F>
void parallel(int64_t items, int64_t grain, int threads, const F& function) {
  run_parallel(
      items, grain, threads,
      [](const void* context, int64_t begin, int64_t end, int thread) {
        (*static_cast<const F*>(context))(begin, end, thread);
      },
      &function);
}

}  // namespace kvc
