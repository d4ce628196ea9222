#include "random.h"

#include <random>

namespace kvc::lib::generation {
namespace {

constexpr int kPool = 4;
constexpr uint32_t kInitA = 0x43b0d7e5, kMultA = 0x931e8875;
constexpr uint32_t kInitB = 0x8b51f9dd, kMultB = 0x58f38ded;
constexpr uint32_t kMixLeft = 0xca01f9dd, kMixRight = 0x4973f715;

// numpy's SeedSequence of one whole number below 2**64 (after O'Neill's `seed_seq_fe`).
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    // numpy has no second word for a seed below 2**32. A missing word counts as 0.
    const uint32_t words[kPool] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                                   0, 0};
    for (int i = 0; i < kPool; ++i) pool_[i] = hashed(words[i]);
    for (int from = 0; from < kPool; ++from) {
      for (int to = 0; to < kPool; ++to) {
        if (from != to) pool_[to] = mixed(pool_[to], hashed(pool_[from]));
      }
    }
  }

  void generate(uint64_t (&state)[4]) const {
    uint32_t constant = kInitB, words[8];
    for (int i = 0; i < 8; ++i) {
      uint32_t word = pool_[i % kPool] ^ constant;
      constant *= kMultB;
      word *= constant;
      words[i] = word ^ (word >> 16);
    }
    for (int i = 0; i < 4; ++i)
      state[i] = words[2 * i] | static_cast<uint64_t>(words[2 * i + 1]) << 32;
  }

 private:
  uint32_t hashed(uint32_t word) {
    word ^= constant_;
    constant_ *= kMultA;
    word *= constant_;
    return word ^ (word >> 16);
  }

  static uint32_t mixed(uint32_t left, uint32_t right) {
    const uint32_t made = kMixLeft * left - kMixRight * right;
    return made ^ (made >> 16);
  }

  uint32_t constant_ = kInitA;
  uint32_t pool_[kPool];
};

// The high half of the product of two numbers.
uint64_t high_product(uint64_t a, uint64_t b) {
  const uint64_t mask = 0xffffffff;
  const uint64_t low = (a & mask) * (b & mask);
  const uint64_t middle = (a >> 32) * (b & mask) + (low >> 32);
  const uint64_t other = (a & mask) * (b >> 32) + (middle & mask);
  return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}

}  // namespace

Random::Wide Random::sum(Wide a, Wide b) {
  const uint64_t low = a.low + b.low;
  return {a.high + b.high + (low < a.low), low};
}

Random::Wide Random::product(Wide a, Wide b) {
  return {high_product(a.low, b.low) + a.high * b.low + a.low * b.high, a.low * b.low};
}

void Random::step() {
  const Wide multiplier{0x2360ed051fc65da4, 0x4385df649fccf645};
  state_ = sum(product(state_, multiplier), increment_);
}

Random::Random(uint64_t seed) {
  uint64_t words[4];
  SeedSequence(seed).generate(words);
  increment_ = {words[2] << 1 | words[3] >> 63, words[3] << 1 | 1};
  step();
  state_ = sum(state_, {words[0], words[1]});
  step();
}

double Random::next() {
  step();
  const uint64_t mixed = state_.high ^ state_.low;
  const int turn = static_cast<int>(state_.high >> 58);
  const uint64_t bits = mixed >> turn | mixed << (-turn & 63);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

uint64_t any_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

}  // namespace kvc::lib::generation
