#include "generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "errors.h"

namespace kvc::lib::generation {
namespace {

constexpr size_t kSpare = 256;  // tokens of an answer that there is room for at first

// Adds the time from its beginning to its end.
class Watch {
 public:
  explicit Watch(double* seconds) : seconds_(seconds) {}
  ~Watch() { *seconds_ += std::chrono::duration<double>(Clock::now() - began_).count(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* seconds_;
  Clock::time_point began_ = Clock::now();
};

bool has(const Tokens& tokens, int64_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

Generator::Generator(Model& model, Settings settings)
    : model_(model), settings_(std::move(settings)) {}

void Generator::generate(const Tokens& history, const int64_t* prompt, int64_t count,
                         kvc_on_token on_token, void* context, kvc_answer* answer) {
  *answer = {};
  answer->pending = prompt;
  answer->pending_count = std::max<int64_t>(count, 0);
  begin(history, prompt, count);
  try {
    if (most_ == 0) {
      answer_.end = KVC_END_MAX_TOKENS;
    } else {
      answer_prompt(on_token, context);
    }
  } catch (...) {
    settle();
    *answer = answer_;
    throw;
  }
  settle();
  *answer = answer_;
}

// Checks that a prompt fits, before anything runs.
void Generator::begin(const Tokens& history, const int64_t* prompt, int64_t count) {
  if (count < 1) fail(KVC_BAD_ARGUMENT, "prompt: expected at least one token, got none");
  const int64_t capacity = model_.capacity();
  start_ = model_.position();
  room_ = start_ == kNone || capacity == kNone ? kNone : capacity - start_;
  held_ = std::max<int64_t>(start_, 0) + count;
  most_ = settings_.max_tokens;
  if (settings_.max_length != kNone) most_ = settings_.max_length - held_;
  if (settings_.max_length != kNone && most_ <= 0) {
    fail(KVC_BAD_ARGUMENT,
         "max_length: expected more than %lld, the tokens up to the end of the "
         "prompt (max_tokens counts the answer alone), got %lld",
         static_cast<long long>(held_), static_cast<long long>(settings_.max_length));
  }
  if (room_ != kNone && count > room_) {
    fail(KVC_CACHE_OVERFLOW,
         "the prompt has %lld tokens, but the session has room for %lld: it holds "
         "%lld of %lld; shorten the prompt, make room (reset or rewind the session), open the "
         "session "
         "with a larger capacity, or compile with a larger cache",
         static_cast<long long>(count), static_cast<long long>(room_),
         static_cast<long long>(start_), static_cast<long long>(capacity));
  }
  answer_ = {};
  prompt_ = count;
  fed_ = 0;
  before_.assign(history.begin(), history.end());
  before_.insert(before_.end(), prompt, prompt + count);
  text_.reserve(static_cast<size_t>(count) + kSpare);
  text_.assign(prompt, prompt + count);
}

void Generator::answer_prompt(kvc_on_token on_token, void* context) {
  {
    const Watch watch(&answer_.prompt_seconds);
    run();
    sampler_.begin(settings_, before_, held_, vocabulary_);
    choose();
  }
  while (true) {
    if (has(settings_.stop_tokens, text_.back())) {
      answer_.end = KVC_END_STOP;
      return;
    }
    ++answer_.tokens;
    const kvc_end end = limit();
    const bool ends = on_token != nullptr && on_token(context, text_.back()) != 0;
    answer_.end = end == KVC_END_NONE && ends ? KVC_END_CALLER : end;
    if (answer_.end != KVC_END_NONE) return;
    const Watch watch(&answer_.step_seconds);
    try {
      choose();
    } catch (const Error& error) {
      // A model that does not count its tokens says only now that it has no room.
      if (error.code != KVC_CACHE_OVERFLOW) throw;
      answer_.end = KVC_END_FULL;
      return;
    }
    ++answer_.steps;
  }
}

// Chooses the next token. One that is forced needs no logits: the tokens ahead of it run later.
void Generator::choose() {
  int64_t token = forced();
  if (token != kNone) {
    sampler_.append(token);
  } else {
    if (fed_ < static_cast<int64_t>(text_.size())) run();
    token = sampler_.choose(logits_);
  }
  text_.push_back(token);
}

int64_t Generator::forced() const {
  const int64_t place = static_cast<int64_t>(text_.size()) - prompt_;
  const Tokens& last = settings_.forced_eos_tokens;
  if (!last.empty() && place == most_ - 1) return *std::min_element(last.begin(), last.end());
  return place == 0 && held_ == 1 ? settings_.forced_bos_token : kNone;
}

// Why the answer ends after its newest token, if it does.
kvc_end Generator::limit() const {
  if (answer_.tokens == most_) return KVC_END_MAX_TOKENS;
  const bool full = room_ != kNone && room_ < static_cast<int64_t>(text_.size());
  return full ? KVC_END_FULL : KVC_END_NONE;
}

// Runs the tokens that have not run.
void Generator::run() {
  const int64_t count = static_cast<int64_t>(text_.size()) - fed_;
  logits_ = model_.step(text_.data() + fed_, count, &vocabulary_);
  fed_ += count;
}

// Tells what has run. After a failure a part of the tokens may have.
void Generator::settle() {
  const int64_t count = static_cast<int64_t>(text_.size());
  if (start_ != kNone) fed_ = std::clamp<int64_t>(model_.position() - start_, 0, count);
  answer_.prompt_tokens = std::min(fed_, prompt_);
  answer_.pending = text_.data() + fed_;
  answer_.pending_count = count - fed_;
}

}  // namespace kvc::lib::generation
