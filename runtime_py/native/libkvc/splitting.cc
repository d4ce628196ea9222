#include "splitting.h"

#include <string>

#include "errors.h"

namespace kvc::lib::text {
namespace {

constexpr char kLlama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr char kQwen2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

[[noreturn]] void refuse(const Json& found) {
  fail(KVC_UNSUPPORTED_TOKENIZER,
       "tokenizer.json: expected a pre_tokenizer as GPT-2, Llama 3, Qwen 2 "
       "or SmolLM2 have it, got %s",
       shown(found.source()).c_str());
}

std::string text_in(const Json& object, const char* key) {
  const Json* found = object.find(key);
  return found != nullptr && found->is(Json::Kind::kText) ? found->text : "";
}

// A truth that an object gives; `missing` if it does not.
bool truth_in(const Json& object, const char* key, bool missing) {
  const Json* found = object.find(key);
  return found != nullptr && found->is(Json::Kind::kBool) ? found->truth : missing;
}

bool is_newline(uint32_t c) { return c == '\r' || c == '\n'; }

// What is neither space, letter nor number.
bool is_other(uint32_t c) { return !is_space(c) && !is_letter(c) && !is_number(c); }

// The end of a run of characters of a class from `at` on, of at most `most`.
template <class F>
size_t run(const Characters& text, size_t at, size_t end, const F& is_in, size_t most = SIZE_MAX) {
  const size_t first = at;
  while (at < end && at - first < most && is_in(text[at])) ++at;
  return at;
}

// The end of a contraction, such as 've, or `at`.
size_t contraction(const Characters& text, size_t at, size_t end, bool any_case) {
  if (text[at] != '\'') return at;
  const auto letter = [&](size_t place) -> uint32_t {
    const uint32_t c = at + place < end ? text[at + place] : 0;
    if (!any_case) return c;
    return c == 0x17F ? 's' : c >= 'A' && c <= 'Z' ? c | 32 : c;  // U+017F, the long s, is an s
  };
  for (const char* suffix : {"s", "t", "re", "ve", "m", "ll", "d"}) {
    const size_t length = suffix[1] == '\0' ? 1 : 2;
    const bool same = letter(1) == static_cast<uint32_t>(suffix[0]);
    if (same && (length == 1 || letter(2) == static_cast<uint32_t>(suffix[1])))
      return at + 1 + length;
  }
  return at;
}

// The end of a run of spaces, `\s+(?!\S)|\s+`: a space before a word is left to the word.
size_t spaces(const Characters& text, size_t at, size_t end) {
  const size_t after = run(text, at, end, is_space);
  return after < end && after - at > 1 ? after - 1 : after;
}

}  // namespace

Splitting::Splitting(const Json& pre_tokenizer) {
  if (text_in(pre_tokenizer, "type") != "Sequence") {
    read(pre_tokenizer);
  } else {
    const Json* parts = pre_tokenizer.find("pretokenizers");
    if (parts == nullptr || parts->items.size() != 2) refuse(pre_tokenizer);
    const std::string first = text_in(parts->items[0], "type");
    if (first == "Digits" && truth_in(parts->items[0], "individual_digits", false)) {
      digits_apart_ = true;
    } else if (first == "Split") {
      read_split(parts->items[0]);
    } else {
      refuse(parts->items[0]);
    }
    read(parts->items[1]);
  }
  if (!has_rules_) refuse(pre_tokenizer);
}

void Splitting::read(const Json& found) {
  if (text_in(found, "type") != "ByteLevel") refuse(found);
  if (truth_in(found, "add_prefix_space", true)) refuse(found);
  const bool has_own = truth_in(found, "use_regex", true);
  if (has_own && has_rules_) refuse(found);
  has_rules_ |= has_own;
}

void Splitting::read_split(const Json& split) {
  const Json* pattern = split.find("pattern");
  const std::string rules = pattern == nullptr ? "" : text_in(*pattern, "Regex");
  const bool isolated =
      text_in(split, "behavior") == "Isolated" && !truth_in(split, "invert", false);
  if (!isolated || (rules != kLlama3 && rules != kQwen2)) refuse(split);
  rules_ = Rules::kLlama3;
  most_digits_ = rules == kLlama3 ? 3 : 1;
  has_rules_ = true;
}

void Splitting::split(const Characters& text, size_t first, size_t end,
                      const std::function<void(size_t, size_t)>& word) const {
  size_t at = first;
  for (size_t i = first; digits_apart_ && i < end; ++i) {
    if (!is_digit(text[i])) continue;
    split_words(text, at, i, word);
    split_words(text, i, i + 1, word);
    at = i + 1;
  }
  split_words(text, at, end, word);
}

void Splitting::split_words(const Characters& text, size_t first, size_t end,
                            const std::function<void(size_t, size_t)>& word) const {
  while (first < end) {
    const size_t next =
        rules_ == Rules::kGpt2 ? word_of_gpt2(text, first, end) : word_of_llama3(text, first, end);
    word(first, next);
    first = next;
  }
}

size_t Splitting::word_of_gpt2(const Characters& text, size_t at, size_t end) const {
  const size_t short_form = contraction(text, at, end, false);
  if (short_form > at) return short_form;
  const size_t begin = text[at] == ' ' && at + 1 < end && !is_space(text[at + 1]) ? at + 1 : at;
  if (is_letter(text[begin])) return run(text, begin, end, is_letter);
  if (is_number(text[begin])) return run(text, begin, end, is_number);
  if (is_other(text[begin])) return run(text, begin, end, is_other);
  return spaces(text, at, end);
}

size_t Splitting::word_of_llama3(const Characters& text, size_t at, size_t end) const {
  const size_t short_form = contraction(text, at, end, true);
  if (short_form > at) return short_form;
  const uint32_t c = text[at];
  if (is_letter(c)) return run(text, at, end, is_letter);
  const bool leads = !is_newline(c) && !is_number(c);
  if (leads && at + 1 < end && is_letter(text[at + 1])) return run(text, at + 1, end, is_letter);
  if (is_number(c)) return run(text, at, end, is_number, most_digits_);
  const size_t begin = c == ' ' && at + 1 < end && is_other(text[at + 1]) ? at + 1 : at;
  if (is_other(text[begin])) {
    return run(text, run(text, begin, end, is_other), end, is_newline);
  }
  // `\s*[\r\n]+` goes to the last new line of the spaces.
  for (size_t after = run(text, at, end, is_space); after > at; --after) {
    if (is_newline(text[after - 1])) return after;
  }
  return spaces(text, at, end);
}

}  // namespace kvc::lib::text
