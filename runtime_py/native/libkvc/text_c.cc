// The C functions of kvc_text.h that turn text into tokens, and tokens into text.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "errors.h"
#include "text.h"

using kvc::lib::fail;
using kvc::lib::Json;
using kvc::lib::text::ByteJoiner;
using kvc::lib::text::Tokenizer;

namespace {

// Searches a text that comes in pieces for strings that end it. The earliest is the one that ends
// first; among equal ends, the longest.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

  bool found() const { return found_; }

  // Adds a piece; returns the text that cannot be part of a stop string.
  std::string push(const std::string& piece) {
    if (found_) return "";
    const std::string text = held_ + piece;
    size_t end = std::string::npos, start = std::string::npos;
    for (const std::string& string : strings_) {
      const size_t place = text.find(string);
      if (place == std::string::npos) continue;
      const size_t after = place + string.size();
      if (end == std::string::npos || after < end || (after == end && place < start)) {
        end = after;
        start = place;
      }
    }
    found_ = end != std::string::npos;
    for (size_t i = 0; !found_ && start == std::string::npos && i < text.size(); ++i) {
      if (may_begin(text, i)) start = i;
    }
    start = std::min(start, text.size());
    held_ = found_ ? "" : text.substr(start);
    return text.substr(0, start);
  }

  std::string finish() {
    const std::string rest = held_;
    held_.clear();
    found_ = false;
    return rest;
  }

 private:
  bool may_begin(const std::string& text, size_t start) const {
    const size_t length = text.size() - start;
    for (const std::string& string : strings_) {
      if (length <= string.size() && string.compare(0, length, text, start, length) == 0)
        return true;
    }
    return false;
  }

  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

std::vector<std::string> strings_in(const char* json) {
  std::vector<std::string> made;
  if (json == nullptr) return made;
  Json list;
  bool fits = Json::read(json, std::strlen(json), &list) && list.is(Json::Kind::kList);
  for (const Json& item : list.items) {
    fits &= item.is(Json::Kind::kText) && !item.text.empty();
    made.push_back(item.text);
  }
  if (!fits)
    fail(KVC_BAD_ARGUMENT, "stop_strings: expected a JSON list of texts that are not empty");
  return made;
}

}  // namespace

struct kvc_spelling {
  const Tokenizer& tokenizer;
  StopStrings stops;
  ByteJoiner joiner;
  std::string piece;
};

kvc_code kvc_tokenizer_open(const void* json, size_t nbytes, kvc_tokenizer** tokenizer,
                            kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (json == nullptr || tokenizer == nullptr) {
      fail(KVC_BAD_ARGUMENT, "kvc_tokenizer_open: expected bytes and a place, got null");
    }
    *tokenizer = new kvc_tokenizer{Tokenizer(static_cast<const char*>(json), nbytes), {}};
  });
}

void kvc_tokenizer_close(kvc_tokenizer* tokenizer) { delete tokenizer; }

kvc_code kvc_tokenizer_encode(kvc_tokenizer* tokenizer, const char* text, size_t nbytes,
                              int32_t special, const int64_t** tokens, int64_t* count,
                              kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (tokenizer == nullptr || text == nullptr || tokens == nullptr || count == nullptr) {
      fail(KVC_BAD_ARGUMENT,
           "kvc_tokenizer_encode: expected a tokenizer, a text and places, got null");
    }
    tokenizer->tokens = tokenizer->tokenizer.encode(text, nbytes, special != 0);
    *tokens = tokenizer->tokens.data();
    *count = static_cast<int64_t>(tokenizer->tokens.size());
  });
}

kvc_code kvc_spelling_open(const kvc_tokenizer* tokenizer, const char* stop_strings,
                           kvc_spelling** spelling, kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (tokenizer == nullptr || spelling == nullptr) {
      fail(KVC_BAD_ARGUMENT, "kvc_spelling_open: expected a tokenizer and a place, got null");
    }
    *spelling =
        new kvc_spelling{tokenizer->tokenizer, StopStrings(strings_in(stop_strings)), {}, ""};
  });
}

void kvc_spelling_close(kvc_spelling* spelling) { delete spelling; }

const char* kvc_spelling_push(kvc_spelling* spelling, int64_t token, size_t* nbytes) {
  std::string text;
  spelling->joiner.push(spelling->tokenizer.bytes_of(token), &text);
  spelling->piece = spelling->stops.push(text);
  if (nbytes != nullptr) *nbytes = spelling->piece.size();
  return spelling->piece.c_str();
}

int32_t kvc_spelling_stopped(const kvc_spelling* spelling) { return spelling->stops.found(); }

const char* kvc_spelling_finish(kvc_spelling* spelling, size_t* nbytes) {
  std::string text;
  spelling->joiner.finish(&text);
  spelling->piece = spelling->stops.push(text);
  spelling->piece += spelling->stops.finish();
  if (nbytes != nullptr) *nbytes = spelling->piece.size();
  return spelling->piece.c_str();
}
