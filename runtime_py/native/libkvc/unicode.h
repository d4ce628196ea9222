// Characters of Unicode: their classes, and UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvc::lib::text {

using Characters = std::vector<uint32_t>;

bool is_letter(uint32_t character);  // \p{L}
bool is_number(uint32_t character);  // \p{N}
bool is_digit(uint32_t character);   // numeric, in the version of Unicode that `Digits` has
bool is_space(uint32_t character);   // \s

// The characters of a text of UTF-8. Returns false if it is not UTF-8.
bool characters_of(const char* text, size_t nbytes, Characters* found);
void add_utf8(uint32_t character, std::string* text);

// Joins bytes that come in pieces into UTF-8. Each longest part that cannot go on becomes U+FFFD,
// as Python's decoder has it.
class ByteJoiner {
 public:
  // Adds the characters that the bytes complete to a text.
  void push(const std::string& bytes, std::string* text);
  // Ends the text: U+FFFD if a character is incomplete.
  void finish(std::string* text);

 private:
  std::string held_;  // the bytes of an incomplete character
  int missing_ = 0;
  uint8_t low_ = 0x80, high_ = 0xBF;  // bounds of the next byte
};

}  // namespace kvc::lib::text
