// Changes of the logits of a step before a token is chosen, in the order of transformers 5.
// Python's generation/processors.py says what each does; the results have the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "settings.h"

namespace kvc::lib::generation {

// The processors of one answer after another. Memory is taken when an answer begins.
class Processors {
 public:
  // Begins an answer. `before` are the tokens ahead of it; `held` is how many tokens of session
  // and prompt stand ahead, more than `before` has if the session's are not known. It is an error
  // if a bias is of a token that is not in the vocabulary.
  void begin(const Settings& settings, const Tokens& before, int64_t held, int64_t vocabulary);

  // Whether logits are left as they are.
  bool idle() const { return idle_; }

  // Adds a token to the text.
  void append(int64_t token);

  // Changes the logits of the next token, float32 [vocabulary].
  void apply(float* logits);

 private:
  struct Addition {
    Tokens before;  // the tokens that must precede
    float added;
    size_t slot;  // where the bias of the last token is summed up
  };

  // A bias of several sequences, as one processor.
  struct Biases {
    std::vector<int64_t> tokens;  // each that has a bias
    std::vector<float> sums;
    std::vector<Addition> additions;
  };

  Biases biases_of(const std::vector<Bias>& biases) const;
  void apply_biases(Biases& biases, float* logits) const;
  void penalize(float* logits) const;
  void forbid_repeated(float* logits) const;
  void hide(const Tokens& tokens, float* logits) const;

  Settings settings_;
  bool idle_ = true;
  int64_t vocabulary_ = 0, answered_ = 0;
  int64_t hidden_first_ = 0;  // the place at which `begin_suppress_tokens` are hidden
  int64_t least_ = 0;         // how many tokens come before a stop token may
  Tokens text_;
  Biases sequences_, singles_, bad_words_;
  std::vector<uint8_t> seen_;      // of each token of the vocabulary, whether the text has it
  std::vector<int64_t> distinct_;  // the tokens of the text, each once
  std::vector<int64_t> counts_;    // how often each token is in the answer
  std::vector<int64_t> counted_;   // the tokens of the answer, each once
};

}  // namespace kvc::lib::generation
