// The loop of a generation: a prompt in, the tokens of an answer out, one after the other.
//
// As Python's `kvc.generate` has it for one row. A token that was handed out runs only when the
// next one is wanted, so the last one of an answer has not run: it is `pending`.
#pragma once

#include <cstdint>

#include "kvc_generate.h"
#include "sampler.h"
#include "settings.h"

namespace kvc::lib::generation {

// What a generation needs of a session.
class Model {
 public:
  virtual ~Model() = default;
  // Runs tokens, and returns the logits after the last, float32 [vocabulary], valid until the
  // next call. Throws `Error`; tokens that have run by then stay.
  virtual const float* step(const int64_t* tokens, int64_t count, int64_t* vocabulary) = 0;
  // How many tokens it holds, kNone if it does not count them.
  virtual int64_t position() = 0;
  // How many tokens it can hold, kNone for no limit.
  virtual int64_t capacity() = 0;
};

// Makes one answer after another. Memory is kept between them.
class Generator {
 public:
  Generator(Model& model, Settings settings);

  // Runs a prompt and makes an answer to it. `history` are the tokens that the model holds
  // already, for penalties; it may be empty. When this throws, `answer` has what came before.
  void generate(const Tokens& history, const int64_t* prompt, int64_t count, kvc_on_token on_token,
                void* context, kvc_answer* answer);

 private:
  void begin(const Tokens& history, const int64_t* prompt, int64_t count);
  void answer_prompt(kvc_on_token on_token, void* context);
  void run();
  void choose();
  int64_t forced() const;
  kvc_end limit() const;
  void settle();

  Model& model_;
  Settings settings_;
  Sampler sampler_;
  int64_t start_ = kNone;         // how many tokens the model held before
  int64_t room_ = kNone;          // how many tokens had room then, kNone for any number
  int64_t held_ = 0;              // tokens of session and prompt
  int64_t most_ = kNone;          // tokens that the answer may have
  int64_t prompt_ = 0, fed_ = 0;  // of `text_`, how many are the prompt, and how many have run
  const float* logits_ = nullptr;
  int64_t vocabulary_ = 0;
  Tokens text_;    // prompt and answer, with a stop token
  Tokens before_;  // history and prompt
  kvc_answer answer_{};
};

}  // namespace kvc::lib::generation
