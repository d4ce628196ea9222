// A tokenizer.json of Hugging Face: byte-level BPE, as GPT-2, Llama 3, Qwen 2 or SmolLM2 have it.
//
// Tokens are those of the package tokenizers 0.23. A file that asks for anything else is refused.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "json.h"
#include "splitting.h"
#include "unicode.h"

namespace kvc::lib::text {

using Tokens = std::vector<int64_t>;

class Tokenizer {
 public:
  // Its tokens are the bytes of a text.
  Tokenizer();
  // Reads a file; throws `Error`.
  Tokenizer(const char* json, size_t nbytes);

  // The tokens of a text. Names of added tokens become these tokens. `special` tells whether to
  // put those around it that the file's template has. Throws `Error`.
  Tokens encode(const char* text, size_t nbytes, bool special) const;

  // The bytes that a token stands for; none for a special one.
  const std::string& bytes_of(int64_t token) const;

 private:
  struct Added {
    std::string name;
    Characters characters;
    int64_t token;
  };

  struct Merge {
    int32_t rank;
    int32_t token;
  };

  // A part of a word while it is merged; parts are linked.
  struct Part {
    int32_t token, before, after;
  };

  void read_model(const Json& model);
  void read_merges(const Json& merges);
  void read_added(const Json* added);
  void read_template(const Json* post_processor);
  void read_single(const Json& single, const Json* names);
  void read_normalizer(const Json* normalizer);
  void read_decoder(const Json* decoder) const;
  void name_bytes(const std::string& name, int64_t token, bool is_special);

  void encode_part(const Characters& text, size_t first, size_t end, size_t pass,
                   Tokens* made) const;
  void find_added(const Characters& text, size_t first, size_t end, size_t pass,
                  Tokens* made) const;
  const Added* added_at(const Characters& text, size_t at, size_t end, size_t pass) const;
  void encode_word(const Characters& text, size_t first, size_t end, Tokens* made) const;
  void merge(std::vector<Part>& parts) const;
  const Merge* merge_of(int32_t left, int32_t right) const;

  std::unordered_map<std::string, int32_t> vocabulary_;
  std::unordered_map<uint64_t, Merge> merges_;
  std::vector<std::string> bytes_;  // of each token
  std::vector<Added> added_[2];     // those found in the text as it is; the others
  int32_t of_byte_[256];            // the token of each byte, -1 for none
  Splitting splitting_;
  Tokens before_, after_;
  bool is_bytes_ = false;
  bool composes_ = false;     // the form NFC is asked for
  bool whole_words_ = false;  // a word of the vocabulary is not merged
};

}  // namespace kvc::lib::text
