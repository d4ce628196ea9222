// Failures within the library: thrown as `Error`, and turned into a code where C calls in.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "kvc.h"

// How printf's texts are checked; MinGW has a printf of its own beside that of Windows.
#if defined(__MINGW32__)
#define KVC_PRINTF(text, first) gnu::format(gnu_printf, text, first)
#else
#define KVC_PRINTF(text, first) gnu::format(printf, text, first)
#endif

namespace kvc::lib {

struct Error {
  kvc_code code;
  std::string text;
};

// Throws an error; the text is as of printf.
[[noreturn, KVC_PRINTF(2, 3)]] void fail(kvc_code code, const char* format, ...);
// The text that printf makes.
[[KVC_PRINTF(1, 2)]] std::string text_of(const char* format, ...);

// A name from a file as it is shown: at most 64 bytes, without control characters.
std::string shown(const std::string& name);

// Writes a code and a text, cut at its end, unless `error` is null; returns the code.
kvc_code report(kvc_error* error, kvc_code code, const char* text);

// Calls a function, and returns the code of what it throws. C gets no exceptions.
template <class F>
kvc_code guarded(kvc_error* error, const F& function) {
  try {
    function();
  } catch (const Error& thrown) {
    return report(error, thrown.code, thrown.text.c_str());
  } catch (const std::bad_alloc&) {
    return report(error, KVC_OUT_OF_MEMORY, "out of memory: close sessions or other programs");
  } catch (const std::exception& thrown) {
    return report(error, KVC_INTERNAL, thrown.what());
  } catch (...) {
    return report(error, KVC_INTERNAL, "an exception of another library");
  }
  if (error != nullptr) {
    error->code = KVC_OK;
    error->text[0] = '\0';
  }
  return KVC_OK;
}

}  // namespace kvc::lib
