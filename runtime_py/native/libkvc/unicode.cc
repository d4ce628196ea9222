#include "unicode.h"

#include <algorithm>
#include <iterator>

namespace kvc::lib::text {
namespace {

struct Range {
  uint32_t first, last;
};

#include "unicode_classes.inc"

template <size_t N>
bool is_in(const Range (&ranges)[N], uint32_t character) {
  const auto after = [](uint32_t wanted, const Range& range) { return wanted < range.first; };
  const Range* found = std::upper_bound(std::begin(ranges), std::end(ranges), character, after);
  return found != ranges && character <= (found - 1)->last;
}

constexpr char kReplacement[] = "\xEF\xBF\xBD";

}  // namespace

bool is_letter(uint32_t c) {
  if (c < 0x80) return (c | 32) >= 'a' && (c | 32) <= 'z';
  return is_in(kLetters, c);
}

bool is_number(uint32_t c) { return c < 0x80 ? c >= '0' && c <= '9' : is_in(kNumbers, c); }

bool is_digit(uint32_t c) { return c < 0x80 ? c >= '0' && c <= '9' : is_in(kDigits, c); }

bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool characters_of(const char* text, size_t nbytes, Characters* found) {
  found->clear();
  found->reserve(nbytes);
  for (size_t i = 0; i < nbytes;) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xC2 ? 0
                          : lead < 0xE0 ? 2
                          : lead < 0xF0 ? 3
                          : lead < 0xF5 ? 4
                                        : 0;
    if (length == 0 || nbytes - i < length) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7F >> length);
    for (size_t j = 1; j < length; ++j) {
      const auto next = static_cast<uint8_t>(text[i + j]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3F);
    }
    const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < least[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    found->push_back(code);
    i += length;
  }
  return true;
}

void add_utf8(uint32_t c, std::string* text) {
  const auto put = [&](uint32_t byte) { *text += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
    return;
  }
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 63));
    }
    put(0x80 | (c >> 6 & 63));
  }
  put(0x80 | (c & 63));
}

void ByteJoiner::push(const std::string& bytes, std::string* text) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (missing_ > 0 && byte >= low_ && byte <= high_) {
      held_ += c;
      low_ = 0x80;
      high_ = 0xBF;
      if (--missing_ == 0) finish(text);
      continue;
    }
    finish(text);
    if (byte < 0x80) {
      *text += c;
    } else if (byte < 0xC2 || byte > 0xF4) {
      *text += kReplacement;
    } else {
      held_ = c;
      missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
      low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
      high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    }
  }
}

void ByteJoiner::finish(std::string* text) {
  if (!held_.empty()) *text += missing_ == 0 ? held_ : kReplacement;
  held_.clear();
  missing_ = 0;
  low_ = 0x80;
  high_ = 0xBF;
}

}  // namespace kvc::lib::text
