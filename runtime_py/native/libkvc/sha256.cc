#include "sha256.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>
#include <immintrin.h>
#define KVC_SHA_X86 1
#elif defined(__ARM_FEATURE_SHA2) || (defined(__APPLE__) && defined(__aarch64__))
#include <arm_neon.h>
#define KVC_SHA_ARM 1
#endif

namespace kvc::lib {
namespace {

alignas(16) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotated(uint32_t x, int by) { return x >> by | x << (32 - by); }

// One of 64 rounds: changes d and h.
inline void turn(uint32_t a, uint32_t b, uint32_t c, uint32_t* d, uint32_t e, uint32_t f,
                 uint32_t g, uint32_t* h, uint32_t sum) {
  const uint32_t first =
      *h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + (g ^ (e & (f ^ g))) + sum;
  const uint32_t second =
      (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) | (c & (a | b)));
  *d += first;
  *h = first + second;
}

void portable_blocks(uint32_t state[8], const uint8_t* bytes, size_t count) {
  for (; count > 0; --count, bytes += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      w[i] = static_cast<uint32_t>(bytes[4 * i]) << 24 | bytes[4 * i + 1] << 16 |
             bytes[4 * i + 2] << 8 | bytes[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      const uint32_t low = rotated(a, 7) ^ rotated(a, 18) ^ a >> 3;
      const uint32_t high = rotated(b, 17) ^ rotated(b, 19) ^ b >> 10;
      w[i] = w[i - 16] + low + w[i - 7] + high;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i += 8) {  // names turn, so that no value is moved
      const auto sum = [&](int j) { return kRounds[i + j] + w[i + j]; };
      turn(a, b, c, &d, e, f, g, &h, sum(0));
      turn(h, a, b, &c, d, e, f, &g, sum(1));
      turn(g, h, a, &b, c, d, e, &f, sum(2));
      turn(f, g, h, &a, b, c, d, &e, sum(3));
      turn(e, f, g, &h, a, b, c, &d, sum(4));
      turn(d, e, f, &g, h, a, b, &c, sum(5));
      turn(c, d, e, &f, g, h, a, &b, sum(6));
      turn(b, c, d, &e, f, g, h, &a, sum(7));
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

#ifdef KVC_SHA_X86
bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool known = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0;
  return known && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 19 & 1) != 0;  // SSE4.1
}

// The state is in two registers, ABEF and CDGH, as the instructions take it.
__attribute__((target("sha,sse4.1,ssse3"))) void fast_blocks(uint32_t state[8],
                                                             const uint8_t* bytes, size_t count) {
  const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  low = _mm_shuffle_epi32(low, 0xB1);
  high = _mm_shuffle_epi32(high, 0x1B);
  __m128i abef = _mm_alignr_epi8(low, high, 8);
  __m128i cdgh = _mm_blend_epi16(high, low, 0xF0);
  for (; count > 0; --count, bytes += 64) {
    const __m128i before[2] = {abef, cdgh};
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      const auto* from = reinterpret_cast<const __m128i*>(bytes + 16 * i);
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(from), order);
    }
    for (int i = 0; i < 16; ++i) {
      const auto* rounds = reinterpret_cast<const __m128i*>(kRounds + 4 * i);
      __m128i sum = _mm_add_epi32(w[0], _mm_load_si128(rounds));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      sum = _mm_shuffle_epi32(sum, 0x0E);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, sum);
      __m128i next = _mm_sha256msg1_epu32(w[0], w[1]);
      next = _mm_add_epi32(next, _mm_alignr_epi8(w[3], w[2], 4));
      next = _mm_sha256msg2_epu32(next, w[3]);
      w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = next;
    }
    abef = _mm_add_epi32(abef, before[0]);
    cdgh = _mm_add_epi32(cdgh, before[1]);
  }
  low = _mm_shuffle_epi32(abef, 0x1B);
  high = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(low, high, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(high, low, 8));
}
#elif defined(KVC_SHA_ARM)
bool has_instructions() { return true; }

void fast_blocks(uint32_t state[8], const uint8_t* bytes, size_t count) {
  uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
  for (; count > 0; --count, bytes += 64) {
    const uint32x4_t before[2] = {abcd, efgh};
    uint32x4_t w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(bytes + 16 * i)));
    }
    for (int i = 0; i < 16; ++i) {
      const uint32x4_t sum = vaddq_u32(w[0], vld1q_u32(kRounds + 4 * i));
      const uint32x4_t old = abcd;
      abcd = vsha256hq_u32(abcd, efgh, sum);
      efgh = vsha256h2q_u32(efgh, old, sum);
      const uint32x4_t next = vsha256su1q_u32(vsha256su0q_u32(w[0], w[1]), w[2], w[3]);
      w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = next;
    }
    abcd = vaddq_u32(abcd, before[0]);
    efgh = vaddq_u32(efgh, before[1]);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}
#endif

void hash_blocks(uint32_t state[8], const uint8_t* bytes, size_t count) {
#if defined(KVC_SHA_X86) || defined(KVC_SHA_ARM)
  static const bool fast = has_instructions();
  if (fast) return fast_blocks(state, bytes, count);
#endif
  portable_blocks(state, bytes, count);
}

constexpr size_t kLeaf = 1 << 20, kThreaded = 4 << 20;

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

void Sha256::update(const void* from, size_t nbytes) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  const size_t held = nbytes_ % 64;
  nbytes_ += nbytes;
  if (held > 0) {
    const size_t part = std::min(nbytes, 64 - held);
    if (part > 0) std::memcpy(rest_ + held, bytes, part);
    if (held + part < 64) return;
    hash_blocks(state_, rest_, 1);
    bytes += part;
    nbytes -= part;
  }
  hash_blocks(state_, bytes, nbytes / 64);
  if (nbytes % 64 > 0) std::memcpy(rest_, bytes + nbytes / 64 * 64, nbytes % 64);
}

Digest Sha256::finish() {
  const uint64_t bits = nbytes_ * 8;
  const uint8_t end[72] = {0x80};
  const size_t zeros = (119 - nbytes_ % 64) % 64;
  update(end, 1 + zeros);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(length, 8);
  Digest digest;
  for (size_t i = 0; i < 32; ++i) {
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest sha256(const void* bytes, size_t nbytes) {
  Sha256 hash;
  hash.update(bytes, nbytes);
  return hash.finish();
}

Digest blob_digest(const uint8_t* bytes, size_t nbytes) {
  if (nbytes <= kLeaf) return sha256(bytes, nbytes);
  std::vector<Digest> leaves((nbytes + kLeaf - 1) / kLeaf);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < leaves.size(); i = next++) {
      leaves[i] = sha256(bytes + i * kLeaf, std::min(kLeaf, nbytes - i * kLeaf));
    }
  };
  std::thread second;
  if (nbytes >= kThreaded) {
    try {
      second = std::thread(work);
    } catch (...) {  // the system gives no thread: this one does all the work
    }
  }
  work();
  if (second.joinable()) second.join();
  Sha256 tree;
  tree.update("kvc-tree", 8);
  tree.update(leaves.data(), leaves.size() * sizeof(Digest));
  return tree.finish();
}

std::string hexadecimal(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace kvc::lib
