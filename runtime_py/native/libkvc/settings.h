// The settings of a generation, as `GenerationSettings` has them in Python's
// generation/settings.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvc::lib::generation {

constexpr int64_t kNone = -1;  // a token or a limit that is not set

using Tokens = std::vector<int64_t>;

// Tokens, and what is added to the logit of the last of them wherever the others precede it.
struct Bias {
  Tokens tokens;
  double added;
};

struct Settings {
  int64_t max_tokens = kNone;  // of an answer
  int64_t max_length = kNone;  // of session, prompt and answer together
  int64_t min_new_tokens = 0;
  int64_t min_length = 0;
  double temperature = 0;  // 0 takes the likeliest token
  int64_t top_k = 0;       // 0 for all tokens
  double top_p = 1;
  double min_p = 0;
  double typical_p = 1;
  double repetition_penalty = 1;
  double frequency_penalty = 0;
  double presence_penalty = 0;
  int64_t no_repeat_ngram_size = 0;
  std::vector<Bias> sequence_bias;
  std::vector<Bias> logit_bias;
  std::vector<Tokens> bad_words;
  bool has_seed = false;
  uint64_t seed = 0;
  Tokens stop_tokens;
  std::vector<std::string> stop_strings;  // for whoever makes text of the tokens
  int64_t forced_bos_token = kNone;
  Tokens forced_eos_tokens;
  Tokens suppress_tokens;
  Tokens begin_suppress_tokens;
  std::string ignored;  // what the bundle asks for in vain, as sentences
};

// The settings of a bundle's generation_config, overridden by a caller's: JSON objects, or null.
// Checked as Python's `settings_of` checks them; throws `Error`.
Settings settings_of(const char* config, const char* given);

}  // namespace kvc::lib::generation
