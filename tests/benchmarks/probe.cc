// What this machine can do at most, as one JSON line; see xnnpack_limits.py.
//
// Usage: probe THREADS. Bytes read from memory a second, in large pages where the system
// gives them; multiply-adds a second of float32 and of int8 whose sums are exact, with the
// widest instructions that the processor has.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kBytes = int64_t{512} << 20, kTurns = 20'000'000;
volatile int64_t sink;

template <class F>
double seconds(int threads, const F& work) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
  for (auto& each : others) each.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The best of several: what the machine can do, not what it does beside others.
template <class F>
double best(int threads, double amount, const F& work) {
  double found = 0;
  for (int i = 0; i < 7; ++i) found = std::max(found, amount / seconds(threads, work));
  return found;
}

typedef int64_t Words __attribute__((vector_size(64)));

void read_all(const char* from, int64_t nbytes) {
  Words sums[4] = {};
  const auto* words = reinterpret_cast<const Words*>(from);
  for (int64_t i = 0; i < nbytes / 64; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] += words[i + j];
  }
  sink = (sums[0] + sums[1] + sums[2] + sums[3])[0];
}

// Independent sums, so that no product waits for another; in assembly, so that they stay in
// registers and each product is made.
constexpr int kSums = 10;

#if defined(__x86_64__)
__attribute__((target("avx2"))) void int8_avx2(int) {
  __m256i sums[kSums] = {}, a = _mm256_set1_epi16(3), b = _mm256_set1_epi16(5);
  for (int64_t i = 0; i < kTurns; ++i) {
#pragma GCC unroll 10
    for (auto& sum : sums) __asm__ volatile("vpmaddwd %2, %1, %%ymm15\n\tvpaddd %%ymm15, %0, %0" : "+x"(sum) : "x"(a), "x"(b) : "xmm15");
  }
#pragma GCC unroll 10
  for (int j = 1; j < kSums; ++j) sums[0] += sums[j];
  sink = static_cast<int64_t>(sums[0][0]);
}

__attribute__((target("avx512f,avx512vnni"))) void int8_vnni(int) {
  __m512i sums[kSums] = {}, a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (int64_t i = 0; i < kTurns; ++i) {
#pragma GCC unroll 10
    for (auto& sum : sums) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  }
#pragma GCC unroll 10
  for (int j = 1; j < kSums; ++j) sums[0] += sums[j];
  sink = static_cast<int64_t>(sums[0][0]);
}

__attribute__((target("avx2,fma"))) void floats_avx2(int) {
  __m256 sums[kSums] = {}, a = _mm256_set1_ps(1e-3f), b = a;
  for (int64_t i = 0; i < kTurns; ++i) {
#pragma GCC unroll 10
    for (auto& sum : sums) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  }
#pragma GCC unroll 10
  for (int j = 1; j < kSums; ++j) sums[0] += sums[j];
  sink = static_cast<int64_t>(sums[0][0]);
}

__attribute__((target("avx512f"))) void floats_avx512(int) {
  __m512 sums[kSums] = {}, a = _mm512_set1_ps(1e-3f), b = a;
  for (int64_t i = 0; i < kTurns; ++i) {
#pragma GCC unroll 10
    for (auto& sum : sums) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  }
#pragma GCC unroll 10
  for (int j = 1; j < kSums; ++j) sums[0] += sums[j];
  sink = static_cast<int64_t>(sums[0][0]);
}
#endif

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  auto* memory = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) return 1;
  madvise(memory, kBytes, MADV_HUGEPAGE);
  std::fill_n(memory, kBytes, 1);
  const int64_t share = kBytes / threads / 256 * 256;
  const double read = best(threads, static_cast<double>(share) * threads,
                           [&](int i) { read_all(memory + i * share, share); });
  double int8 = 0, floats = 0;
#if defined(__x86_64__)
  const double products = static_cast<double>(kTurns) * kSums * threads;
  if (__builtin_cpu_supports("avx512vnni")) {
    int8 = best(threads, products * 64, int8_vnni);
  } else if (__builtin_cpu_supports("avx2")) {
    int8 = best(threads, products * 16, int8_avx2);
  }
  if (__builtin_cpu_supports("avx512f")) {
    floats = best(threads, products * 16, floats_avx512);
  } else if (__builtin_cpu_supports("fma")) {
    floats = best(threads, products * 8, floats_avx2);
  }
#endif
  if (int8 == 0 || floats == 0) {
    std::fprintf(stderr, "no probe for this processor: it needs AVX2 and FMA\n");
    return 1;
  }
  std::printf("{\"read_bytes\": %.0f, \"int8_products\": %.0f, \"float_products\": %.0f}\n", read,
              int8, floats);
}
