#include "pool.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvc {
namespace {

// How often a thread looks for work, or for its end, before it sleeps. To wake up takes many
// times longer than to find work; to look for long takes the processor from others. So a
// thread looks longer as long as that has helped, and shorter after it had to sleep all the
// same.
class Patience {
 public:
  int spins() const { return spins_; }
  void found() { spins_ = spins_ < kMost ? spins_ * 2 : kMost; }
  void slept() { spins_ = spins_ > kLeast ? spins_ / 2 : kLeast; }

 private:
  static constexpr int kLeast = 128, kMost = 4096;
  int spins_ = 1024;
};

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

struct Job {
  Work work = nullptr;
  const void* context = nullptr;
  int64_t items = 0;
  int64_t grain = 1;
  int threads = 1;
};

// Items that a thread begins with; on a cache line of its own.
struct alignas(64) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

// A job's number, whether threads may still join it, and how many work on it: one word,
// so that a thread that wakes too late cannot join a job that has ended.
constexpr uint64_t kOpen = 1 << 15;
constexpr uint64_t kWorking = kOpen - 1;
constexpr uint64_t number_of(uint64_t state) { return state >> 16; }

// Threads that do the work of this one instead of the process's.
thread_local const Lent* lent_here = nullptr;

class Pool {
 public:
  void run(const Job& job) {
    std::unique_lock<std::mutex> alone(busy_, std::try_to_lock);
    if (!alone.owns_lock() || (lent_here == nullptr && !start_threads(job.threads - 1))) {
      job.work(job.context, 0, job.items, 0);
      return;
    }
    job_ = job;
    share_out();
    if (lent_here != nullptr) {
      const auto task = [](void* pool, size_t thread) {
        static_cast<Pool*>(pool)->claim(static_cast<int>(thread));
      };
      lent_here->run(lent_here->pool, task, this, job.threads, 0);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      state_.store((number_of(state_.load()) + 1) << 16 | kOpen, std::memory_order_release);
    }
    wake_.notify_all();
    claim(0);
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int spin = 0; is_worked_on(); ++spin) {
      if (spin < patience_.spins()) {
        pause();
        continue;
      }
      patience_.slept();
      std::unique_lock<std::mutex> lock(mutex_);
      done_.wait(lock, [this] { return !is_worked_on(); });
      return;
    }
    patience_.found();
  }

 private:
  bool is_worked_on() const { return (state_.load(std::memory_order_acquire) & kWorking) != 0; }

  // Makes threads until there are so many; false where the system gives none at all.
  bool start_threads(int wanted) {
    while (started_ < wanted && started_ < kMaxThreads - 1) {
      try {
        std::thread([this, index = started_ + 1, seen = number_of(state_.load())] {
          serve(index, seen);
        }).detach();
      } catch (...) {
        break;
      }
      ++started_;
    }
    return started_ > 0;
  }

  [[noreturn]] void serve(int index, uint64_t seen) {
    Patience patience;
    for (;;) {
      bool slept = false;
      for (int spin = 0; number_of(state_.load(std::memory_order_acquire)) == seen; ++spin) {
        if (spin < patience.spins()) {
          pause();
          continue;
        }
        slept = true;
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return number_of(state_.load()) != seen; });
      }
      slept ? patience.slept() : patience.found();
      if (join(&seen)) {
        if (index < job_.threads) claim(index);
        leave();
      }
    }
  }

  // Joins the job there is, unless it has ended; tells its number.
  bool join(uint64_t* seen) {
    uint64_t state = state_.load(std::memory_order_acquire);
    do {
      *seen = number_of(state);
      if ((state & kOpen) == 0) return false;
    } while (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel));
    return true;
  }

  void leave() {
    const uint64_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & (kWorking | kOpen)) != 1) return;
    std::lock_guard<std::mutex> lock(mutex_);
    done_.notify_one();
  }

  // Gives each thread a share of the items that lie together, a stream of memory of its own.
  void share_out() {
    const int64_t pieces = (job_.items + job_.grain - 1) / job_.grain;
    for (int64_t i = 0; i < job_.threads; ++i) {
      shares_[i].next.store(pieces * i / job_.threads * job_.grain, std::memory_order_relaxed);
      shares_[i].end = std::min(job_.items, pieces * (i + 1) / job_.threads * job_.grain);
    }
  }

  // Works on the pieces of the thread's own share, then on what others have not begun.
  void claim(int thread) {
    for (int i = 0; i < job_.threads; ++i) {
      Share& share = shares_[(thread + i) % job_.threads];
      for (;;) {
        const int64_t begin = share.next.fetch_add(job_.grain, std::memory_order_relaxed);
        if (begin >= share.end) break;
        job_.work(job_.context, begin, std::min(share.end, begin + job_.grain), thread);
      }
    }
  }

  std::mutex busy_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> state_{0};
  Share shares_[kMaxThreads];
  int started_ = 0;
  Patience patience_;
  Job job_;
};

// Never destroyed: its threads may still wait in it while the process ends.
Pool* pool = nullptr;

// A child of a fork has none of the threads, and perhaps locks that nobody will open.
void forget() { pool = new (std::nothrow) Pool; }

Pool* the_pool() {
  static const bool made = [] {
    forget();
#if !defined(_WIN32)  // which has no forks
    pthread_atfork(nullptr, nullptr, forget);
#endif
    return true;
  }();
  (void)made;
  return pool;
}

}  // namespace

Borrowing::Borrowing(const Lent* lent) { lent_here = lent; }
Borrowing::~Borrowing() { lent_here = nullptr; }

void run_parallel(int64_t items, int64_t grain, int threads, Work work, const void* context) {
  if (items <= 0) return;
  if (grain < 1) grain = 1;
  if (threads > kMaxThreads) threads = kMaxThreads;
  Pool* shared = threads > 1 && items > grain ? the_pool() : nullptr;
  if (shared == nullptr) {
    work(context, 0, items, 0);
    return;
  }
  shared->run(Job{work, context, items, grain, threads});
}

}  // namespace kvc
