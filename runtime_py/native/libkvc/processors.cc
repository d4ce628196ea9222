#include "processors.h"

#include <algorithm>
#include <limits>

#include "errors.h"

namespace kvc::lib::generation {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr size_t kSpare = 256;  // tokens of an answer that there is room for at first

// The biases of equal tokens are one: the last of them, at the place of the first.
std::vector<Bias> distinct(const std::vector<Bias>& biases) {
  std::vector<Bias> made;
  for (const Bias& bias : biases) {
    const auto same = [&](const Bias& other) { return other.tokens == bias.tokens; };
    const auto found = std::find_if(made.begin(), made.end(), same);
    if (found == made.end()) {
      made.push_back(bias);
    } else {
      found->added = bias.added;
    }
  }
  return made;
}

std::vector<Bias> forbidden(const Settings& settings) {
  std::vector<Bias> made;
  const Tokens& stops = settings.stop_tokens;
  for (const Tokens& word : settings.bad_words) {
    // As in transformers, a bad word that is a stop token alone may end the answer.
    const bool stop =
        word.size() == 1 && std::find(stops.begin(), stops.end(), word[0]) != stops.end();
    if (!stop) made.push_back({word, kNever});
  }
  return made;
}

}  // namespace

void Processors::begin(const Settings& settings, const Tokens& before, int64_t held,
                       int64_t vocabulary) {
  settings_ = settings;
  vocabulary_ = vocabulary;
  answered_ = 0;
  sequences_ = biases_of(settings.sequence_bias);
  singles_ = biases_of(settings.logit_bias);
  bad_words_ = biases_of(forbidden(settings));
  hidden_first_ = held == 1 && settings.forced_bos_token != kNone;
  least_ = settings.min_new_tokens != 0 ? settings.min_new_tokens : settings.min_length - held;
  idle_ = sequences_.tokens.empty() && singles_.tokens.empty() && bad_words_.tokens.empty() &&
          settings.repetition_penalty == 1 && settings.frequency_penalty == 0 &&
          settings.presence_penalty == 0 && settings.no_repeat_ngram_size == 0 &&
          (least_ <= 0 || settings.stop_tokens.empty()) && settings.suppress_tokens.empty() &&
          settings.begin_suppress_tokens.empty();
  seen_.assign(static_cast<size_t>(vocabulary), 0);
  counts_.assign(static_cast<size_t>(vocabulary), 0);
  distinct_.clear();
  counted_.clear();
  text_.clear();
  const size_t room = before.size() + kSpare;
  distinct_.reserve(std::min(room, static_cast<size_t>(vocabulary)));
  counted_.reserve(std::min(kSpare, static_cast<size_t>(vocabulary)));
  text_.reserve(room);
  for (const int64_t token : before) append(token);
  answered_ = 0;
  for (const int64_t token : counted_) counts_[token] = 0;
  counted_.clear();
}

Processors::Biases Processors::biases_of(const std::vector<Bias>& biases) const {
  Biases made;
  const std::vector<Bias> found = distinct(biases);
  for (const Bias& bias : found) {
    const int64_t greatest = *std::max_element(bias.tokens.begin(), bias.tokens.end());
    if (greatest >= vocabulary_) {
      fail(KVC_BAD_ARGUMENT,
           "sequence_bias, logit_bias or bad_words_ids: expected tokens below %lld, "
           "the model's vocabulary, found %lld",
           static_cast<long long>(vocabulary_), static_cast<long long>(greatest));
    }
  }
  // Single tokens come first, as Python adds them.
  for (const bool single : {true, false}) {
    for (const Bias& bias : found) {
      if ((bias.tokens.size() == 1) != single) continue;
      const auto at = std::find(made.tokens.begin(), made.tokens.end(), bias.tokens.back());
      const size_t slot = static_cast<size_t>(at - made.tokens.begin());
      if (at == made.tokens.end()) made.tokens.push_back(bias.tokens.back());
      const Tokens before(bias.tokens.begin(), bias.tokens.end() - 1);
      made.additions.push_back({before, static_cast<float>(bias.added), slot});
    }
  }
  made.sums.resize(made.tokens.size());
  return made;
}

void Processors::append(int64_t token) {
  text_.push_back(token);
  ++answered_;
  if (token >= vocabulary_) return;  // a model may read tokens that it never generates
  if (!seen_[token]) distinct_.push_back(token);
  seen_[token] = 1;
  if (counts_[token]++ == 0) counted_.push_back(token);
}

void Processors::apply(float* logits) {
  apply_biases(sequences_, logits);
  apply_biases(singles_, logits);
  penalize(logits);
  forbid_repeated(logits);
  apply_biases(bad_words_, logits);
  if (answered_ < least_) hide(settings_.stop_tokens, logits);
  hide(settings_.suppress_tokens, logits);
  if (answered_ == hidden_first_) hide(settings_.begin_suppress_tokens, logits);
}

void Processors::apply_biases(Biases& biases, float* logits) const {
  std::fill(biases.sums.begin(), biases.sums.end(), 0.0f);
  for (const Addition& addition : biases.additions) {
    const size_t size = addition.before.size();
    if (size > text_.size()) continue;
    if (std::equal(addition.before.begin(), addition.before.end(), text_.end() - size)) {
      biases.sums[addition.slot] += addition.added;
    }
  }
  for (size_t i = 0; i < biases.tokens.size(); ++i) logits[biases.tokens[i]] += biases.sums[i];
}

void Processors::penalize(float* logits) const {
  const double penalty = settings_.repetition_penalty;
  if (penalty != 1) {
    for (const int64_t token : distinct_) {
      const double found = logits[token];
      logits[token] = static_cast<float>(found < 0 ? found * penalty : found / penalty);
    }
  }
  const double often = settings_.frequency_penalty, once = settings_.presence_penalty;
  if (often == 0 && once == 0) return;
  for (const int64_t token : counted_) {
    const double taken = often * static_cast<double>(counts_[token]) + once;
    logits[token] = static_cast<float>(logits[token] - taken);
  }
}

// Forbids tokens that would end a sequence of tokens a second time.
void Processors::forbid_repeated(float* logits) const {
  const int64_t size = settings_.no_repeat_ngram_size, count = static_cast<int64_t>(text_.size());
  if (size == 0 || count < size) return;
  const auto last = text_.end() - (size - 1);
  for (auto at = text_.begin(); at + (size - 1) < text_.end(); ++at) {
    const int64_t next = *(at + (size - 1));
    if (std::equal(last, text_.end(), at) && next < vocabulary_) logits[next] = kNever;
  }
}

void Processors::hide(const Tokens& tokens, float* logits) const {
  for (const int64_t token : tokens) {
    if (token < vocabulary_) logits[token] = kNever;
  }
}

}  // namespace kvc::lib::generation
