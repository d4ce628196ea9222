// Whether bytes are UTF-8 (RFC 3629).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc::lib {

// How many bytes the character at the beginning of a text has; 0 where there is none but a zero.
inline size_t character_nbytes(const char* text, size_t left) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return lead == 0 ? 0 : 1;
  const size_t nbytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || nbytes > left) return 0;
  uint32_t code = lead & (0x7Fu >> nbytes);
  for (size_t i = 1; i < nbytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return 0;
    code = code << 6 | (next & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool half = code >= 0xD800 && code < 0xE000;
  return code < kLeast[nbytes] || code > 0x10FFFF || half ? 0 : nbytes;
}

// Whether all of a text is UTF-8 without zeros.
inline bool is_utf8(const char* text, size_t nbytes) {
  for (size_t i = 0; i < nbytes;) {
    const size_t character = character_nbytes(text + i, nbytes - i);
    if (character == 0) return false;
    i += character;
  }
  return true;
}

}  // namespace kvc::lib
