#if defined(__MINGW32__)
#define __USE_MINGW_ANSI_STDIO 1  // its printf knows all conversions of C99
#endif
#include "errors.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace kvc::lib {
namespace {

std::string formatted(const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

// Ends a text of UTF-8 before a character that was cut.
void drop_cut_character(char* text) {
  size_t end = std::strlen(text), start = end;
  while (start > 0 && (text[start - 1] & 0xC0) == 0x80) --start;
  if (start == 0) return;
  const auto lead = static_cast<unsigned char>(text[start - 1]);
  const size_t whole = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (end - (start - 1) < whole) text[start - 1] = '\0';
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
  drop_cut_character(error->text);
  return code;
}

}  // namespace kvc::lib
