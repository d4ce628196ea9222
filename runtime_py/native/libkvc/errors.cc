#if defined(__MINGW32__)
#define __USE_MINGW_ANSI_STDIO 1  // its printf knows all conversions of C99
#endif
#include "errors.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "utf8.h"

namespace kvc::lib {
namespace {

std::string formatted(const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

// Replaces what is no UTF-8, such as a character that was cut, or bytes of a file.
void make_utf8(char* text) {
  const size_t nbytes = std::strlen(text);
  for (size_t i = 0; i < nbytes;) {
    const size_t character = character_nbytes(text + i, nbytes - i);
    if (character == 0) text[i] = '?';
    i += character == 0 ? 1 : character;
  }
}

}  // namespace

std::string text_of(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string text = formatted(format, arguments);
  va_end(arguments);
  return text;
}

void fail(kvc_code code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  Error error{code, formatted(format, arguments)};
  va_end(arguments);
  throw error;
}

std::string shown(const std::string& name) {
  std::string text = name.substr(0, 64);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  if (name.size() > text.size()) text += "...";
  return text;
}

kvc_code report(kvc_error* error, kvc_code code, const char* text) {
  if (error == nullptr) return code;
  error->code = code;
  std::snprintf(error->text, sizeof error->text, "%s", text);
  make_utf8(error->text);
  return code;
}

}  // namespace kvc::lib
