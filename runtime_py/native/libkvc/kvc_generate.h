// The C interface of libkvc's generation: text models that continue tokens with tokens.
//
// A generator chooses the tokens of a session of one row. Its settings are JSON, with the names
// and meanings of Python's `kvc.generate`, such as {"temperature": 0.8, "top_p": 0.9, "seed": 7}.
// What they leave out comes from the bundle's metadata "generation_config", as in Python. With the
// same settings and seed, the tokens are Python's. KVC_RUN.md has a program that uses this.
//
// Known settings: max_tokens (or max_new_tokens), max_length, min_new_tokens, min_length,
// do_sample, temperature, top_k, top_p, min_p, typical_p, repetition_penalty, frequency_penalty,
// presence_penalty, no_repeat_ngram_size, sequence_bias, logit_bias, bad_words_ids, seed,
// stop_tokens (or eos_token_id), stop_strings, forced_bos_token_id, forced_eos_token_id,
// suppress_tokens, begin_suppress_tokens.
#ifndef KVC_GENERATE_H
#define KVC_GENERATE_H

#include "kvc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvc_generator kvc_generator;
typedef struct kvc_sampler kvc_sampler;

// Why an answer ended.
typedef enum kvc_end {
  KVC_END_NONE = 0,        // it has not: the call failed
  KVC_END_STOP = 1,        // the model made a stop token, which the caller does not get
  KVC_END_MAX_TOKENS = 2,  // the limit of max_tokens or max_length
  KVC_END_FULL = 3,        // the cache has no room for the last token
  KVC_END_CALLER = 4       // the function that gets the tokens said so
} kvc_end;

typedef struct kvc_answer {
  int32_t end;             // kvc_end
  int64_t tokens;          // how many the caller got
  int64_t prompt_tokens;   // of the prompt, how many have run
  double prompt_seconds;   // how long that took
  int64_t steps;           // how many tokens were made after the first
  double step_seconds;     // how long these took, without the caller's time
  const int64_t* pending;  // tokens of prompt and answer that have not run yet. To go on,
  int64_t pending_count;   // begin the next prompt with them; until the next use
} kvc_answer;

// Gets each token as it is made. Anything but 0 ends the answer.
typedef int32_t (*kvc_on_token)(void* context, int64_t token);

// Opens a generator of a session, which stays open until the generator is closed. `settings` is a
// JSON object, or null.
KVC_PUBLIC kvc_code kvc_generator_open(const kvc_bundle* bundle, kvc_session* session,
                                       const char* settings, kvc_generator** generator,
                                       kvc_error* error);
KVC_PUBLIC void kvc_generator_close(kvc_generator* generator);
// What the bundle's settings ask for in vain, as sentences; empty for nothing.
KVC_PUBLIC const char* kvc_generator_ignored(const kvc_generator* generator);
// The strings that end an answer, a JSON list; the caller, who makes text of tokens, applies them.
KVC_PUBLIC const char* kvc_generator_stop_strings(const kvc_generator* generator);

// Runs a prompt, at least one token, and makes an answer. `history` are the tokens that the session
// holds already, for penalties; null where nobody knows them. After a failure the session holds
// what has run; `answer` tells.
KVC_PUBLIC kvc_code kvc_generate(kvc_generator* generator, const int64_t* history,
                                 int64_t history_count, const int64_t* prompt, int64_t prompt_count,
                                 kvc_on_token on_token, void* context, kvc_answer* answer,
                                 kvc_error* error);

// What a generator needs of a model that is not a session, in the caller's own code.
typedef struct kvc_source {
  void* context;
  // Runs tokens, and gives the logits after the last, valid until the next call.
  kvc_code (*step)(void* context, const int64_t* tokens, int64_t count, const float** logits,
                   int64_t* vocabulary, kvc_error* error);
  // How many tokens the model holds, -1 if it does not count them.
  int64_t (*position)(void* context);
  int64_t capacity;  // how many tokens it can hold, -1 for no limit
} kvc_source;

// Opens a generator of such a model. `config` is the JSON of a generation_config, or null.
KVC_PUBLIC kvc_code kvc_generator_open_source(const kvc_source* source, const char* config,
                                              const char* settings, kvc_generator** generator,
                                              kvc_error* error);

// ---- Choosing tokens alone, for loops of the caller.

KVC_PUBLIC kvc_code kvc_sampler_open(const char* config, const char* settings,
                                     kvc_sampler** sampler, kvc_error* error);
KVC_PUBLIC void kvc_sampler_close(kvc_sampler* sampler);
// Begins an answer after the tokens `before`, which the session holds.
KVC_PUBLIC kvc_code kvc_sampler_begin(kvc_sampler* sampler, const int64_t* before, int64_t count,
                                      int64_t vocabulary, kvc_error* error);
// Chooses the next token by its logits, float32 [vocabulary].
KVC_PUBLIC kvc_code kvc_sampler_choose(kvc_sampler* sampler, const float* logits, int64_t* token,
                                       kvc_error* error);

#ifdef __cplusplus
}
#endif

#endif  // KVC_GENERATE_H
