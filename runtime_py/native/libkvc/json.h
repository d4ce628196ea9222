// A strict reader of JSON (RFC 8259): headers of saved sessions, settings, tokenizers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvc::lib {

class Json {
 public:
  enum class Kind { kNull, kBool, kInteger, kNumber, kText, kList, kObject };

  // Reads a whole text. Returns false for anything that is no JSON, a key that an object has
  // twice, or values within each other more than 64 times.
  static bool read(const char* text, size_t nbytes, Json* found);

  Kind kind = Kind::kNull;
  bool truth = false;
  int64_t integer = 0;
  double number = 0;  // of an integer too
  std::string text;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;
  const char* begin = nullptr;  // the value as it was written
  const char* end = nullptr;

  bool is(Kind wanted) const { return kind == wanted; }
  // A member of an object, or null.
  const Json* find(const char* key) const;
  std::string source() const { return std::string(begin, end); }
};

// A text as JSON has it, with its quotes.
std::string quoted(const std::string& text);

}  // namespace kvc::lib
