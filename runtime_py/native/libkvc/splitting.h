// How byte-level tokenizers split a text into words, which merges do not cross.
#pragma once

#include <cstddef>
#include <functional>

#include "json.h"
#include "unicode.h"

namespace kvc::lib::text {

// The `pre_tokenizer` of a tokenizer.json: one of those that are in use.
class Splitting {
 public:
  Splitting() = default;
  // Throws `Error` for anything that it does not know.
  explicit Splitting(const Json& pre_tokenizer);

  // Calls `word(first, end)` for each word of the characters from `first` to `end`, in order.
  void split(const Characters& text, size_t first, size_t end,
             const std::function<void(size_t, size_t)>& word) const;

 private:
  // `'s|'t|'re|'ve|'m|'ll|'d`, then runs of letters, numbers, others and spaces.
  enum class Rules { kGpt2, kLlama3 };

  void read(const Json& pre_tokenizer);
  void read_split(const Json& split);
  void split_words(const Characters& text, size_t first, size_t end,
                   const std::function<void(size_t, size_t)>& word) const;
  size_t word_of_gpt2(const Characters& text, size_t at, size_t end) const;
  size_t word_of_llama3(const Characters& text, size_t at, size_t end) const;

  bool digits_apart_ = false;  // each digit is a text of its own
  bool has_rules_ = false;
  Rules rules_ = Rules::kGpt2;
  size_t most_digits_ = 1;  // of a word, with Llama 3's rules
};

}  // namespace kvc::lib::text
