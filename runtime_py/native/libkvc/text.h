// What `kvc_tokenizer` is.
#pragma once

#include "kvc_text.h"
#include "tokenizer.h"

struct kvc_tokenizer {
  kvc::lib::text::Tokenizer tokenizer;
  kvc::lib::text::Tokens tokens;  // of the last text
};
