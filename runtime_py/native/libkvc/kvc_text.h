// The C interface of libkvc's tokenizer, for bundles with a byte-level tokenizer.json, as GPT-2,
// Llama 3, Qwen 2 and SmolLM2 have it. Tokens are those of the package tokenizers of Python. Files
// of other kinds are refused with KVC_UNSUPPORTED_TOKENIZER; the text says why.
#ifndef KVC_TEXT_H
#define KVC_TEXT_H

#include "kvc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvc_tokenizer kvc_tokenizer;
typedef struct kvc_spelling kvc_spelling;
typedef struct kvc_turns kvc_turns;

// Opens the tokenizer that a bundle names: its tokenizer.json, or its bytes. KVC_UNKNOWN_NAME if it
// names none: its texts are token ids.
KVC_PUBLIC kvc_code kvc_tokenizer_of(kvc_bundle* bundle, kvc_tokenizer** tokenizer,
                                     kvc_error* error);
// Reads the bytes of a tokenizer.json, such as kvc_get_file gives them; they are not kept.
KVC_PUBLIC kvc_code kvc_tokenizer_open(const void* json, size_t nbytes, kvc_tokenizer** tokenizer,
                                       kvc_error* error);
// Frees a tokenizer, after its spellings; null does nothing.
KVC_PUBLIC void kvc_tokenizer_close(kvc_tokenizer* tokenizer);
// Gives the tokens of a text, valid until the next call with this tokenizer. Names of special
// tokens in the text become these tokens. `special` tells whether to put those around the text that
// the tokenizer has for that: 1 where a session begins, 0 elsewhere.
KVC_PUBLIC kvc_code kvc_tokenizer_encode(kvc_tokenizer* tokenizer, const char* text, size_t nbytes,
                                         int32_t special, const int64_t** tokens, int64_t* count,
                                         kvc_error* error);

// Turns tokens into text, one by one. `stop_strings` is a JSON list of strings that end the text,
// such as kvc_generator_stop_strings gives it, or null.
KVC_PUBLIC kvc_code kvc_spelling_open(const kvc_tokenizer* tokenizer, const char* stop_strings,
                                      kvc_spelling** spelling, kvc_error* error);
KVC_PUBLIC void kvc_spelling_close(kvc_spelling* spelling);
// Adds a token; returns new text that later tokens cannot change, whole characters, valid until the
// next call. `nbytes`, which may be null, gets its length: a text may hold zeros. Special tokens
// have no text. Text that may begin a stop string waits.
KVC_PUBLIC const char* kvc_spelling_push(kvc_spelling* spelling, int64_t token, size_t* nbytes);
// Whether a stop string has been found. It and what follows are left out.
KVC_PUBLIC int32_t kvc_spelling_stopped(const kvc_spelling* spelling);
// Ends the text; returns the rest of it. The next token begins another text.
KVC_PUBLIC const char* kvc_spelling_finish(kvc_spelling* spelling, size_t* nbytes);

// ---- Conversations.

// Reads the texts around messages of a model's chat template, the JSON that `kvc chat MODEL.kvc
// --turns FILE` writes, so that no template has to run.
KVC_PUBLIC kvc_code kvc_turns_open(const void* json, size_t nbytes, kvc_turns** turns,
                                   kvc_error* error);
KVC_PUBLIC void kvc_turns_close(kvc_turns* turns);
// Gives the text of a turn, from the end of the last answer to the beginning of the next one, valid
// until the next call. Only the first turn has a system message, or null. Encode it without special
// tokens.
KVC_PUBLIC kvc_code kvc_turns_text(kvc_turns* turns, int32_t is_first, const char* system,
                                   const char* said, const char** text, kvc_error* error);
// The tokens that end an answer, a JSON list, for the setting stop_tokens.
KVC_PUBLIC const char* kvc_turns_stop_tokens(const kvc_turns* turns);

#ifdef __cplusplus
}
#endif

#endif  // KVC_TEXT_H
