// The next token of a row, chosen from its logits, as Python's generation/sampling.py chooses it.
//
// Processors change the logits first; then, as in transformers 5, come temperature, top-k, top-p,
// min-p, typical-p. Sums are taken in numpy's order, and random numbers are numpy's. So a seed
// gives the tokens that it gives in Python, unless a random number falls within a rounding of
// `exp` (2**-52) of the border of a token: numpy's `exp` is not the C library's on every processor.
#pragma once

#include <cstdint>
#include <vector>

#include "processors.h"
#include "random.h"
#include "settings.h"

namespace kvc::lib::generation {

// Chooses the tokens of one answer after another. Memory is taken when an answer begins.
class Sampler {
 public:
  // Begins an answer after the tokens `before`; `held` as in `Processors::begin`.
  void begin(const Settings& settings, const Tokens& before, int64_t held, int64_t vocabulary);

  // Chooses a token by its logits, float32 [vocabulary], and adds it to the text. It is an error
  // if NaN is among them, or if no token can be chosen.
  int64_t choose(const float* logits);

  // Adds a token to the text that was not chosen.
  void append(int64_t token) { processors_.append(token); }

 private:
  bool likeliest(const float* logits, int64_t* token, const char** reason) const;
  bool sampled(const float* logits, int64_t* token, const char** reason);
  // Each of these leaves some of the first `kept_` tokens, in order.
  void keep_top_k(const float* logits);
  void keep_top_p();
  void keep_likely();
  void keep_typical();
  void keep_marked();
  void find_chances();
  double narrow(double share);
  double above_mean(int64_t* upper);
  void sort_places(const double* keys, bool falling);

  Settings settings_;
  Processors processors_;
  Random random_;
  int64_t vocabulary_ = 0, kept_ = 0, undecided_ = 0;
  std::vector<float> changed_, heap_;
  std::vector<int64_t> ids_, places_;
  std::vector<double> scores_, chances_, gathered_;
  std::vector<uint8_t> marks_;
};

}  // namespace kvc::lib::generation
