// Random numbers as numpy's `default_rng(seed).random()` has them: PCG64, seeded by SeedSequence.
#pragma once

#include <cstdint>

namespace kvc::lib::generation {

// The generator PCG64 (O'Neill: PCG, 2014), XSL RR 128/64, as numpy 1.17 and later seed it.
class Random {
 public:
  explicit Random(uint64_t seed = 0);

  // The next double from 0 to 1 - 2**-53.
  double next();

 private:
  // A number of 128 bits: not every compiler has them.
  struct Wide {
    uint64_t high, low;
  };

  static Wide sum(Wide a, Wide b);
  static Wide product(Wide a, Wide b);
  void step();

  Wide state_{0, 0}, increment_{0, 0};
};

// A seed that differs from run to run.
uint64_t any_seed();

}  // namespace kvc::lib::generation
