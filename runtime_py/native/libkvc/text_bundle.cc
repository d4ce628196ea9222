// The tokenizer of a bundle.
#include <cstring>

#include "errors.h"
#include "json.h"
#include "text.h"

using kvc::lib::Error;
using kvc::lib::fail;
using kvc::lib::Json;
using kvc::lib::text::Tokenizer;

namespace {

kvc_tokenizer* tokenizer_in(kvc_bundle* bundle) {
  const char* named = nullptr;
  kvc_error error{};
  kvc_code code = kvc_get_metadata(bundle, "tokenizer", &named, &error);
  if (code != KVC_OK) throw Error{code, error.text};
  Json kind;
  if (!Json::read(named, std::strlen(named), &kind))
    fail(KVC_DAMAGED, "metadata tokenizer: no JSON");
  if (kind.is(Json::Kind::kNull)) fail(KVC_UNKNOWN_NAME, "the bundle names no tokenizer");
  if (kind.text == "bytes") return new kvc_tokenizer{Tokenizer(), {}};
  const void* bytes = nullptr;
  size_t nbytes = 0;
  code = kvc_get_file(bundle, "tokenizer.json", &bytes, &nbytes, &error);
  if (code == KVC_UNKNOWN_NAME || kind.text != "tokenizer.json") {
    fail(KVC_UNSUPPORTED_TOKENIZER,
         "the bundle's metadata tokenizer: expected \"bytes\", or "
         "\"tokenizer.json\" and this file in the bundle, got %s",
         kvc::lib::shown(kind.source()).c_str());
  }
  if (code != KVC_OK) throw Error{code, error.text};
  return new kvc_tokenizer{Tokenizer(static_cast<const char*>(bytes), nbytes), {}};
}

}  // namespace

kvc_code kvc_tokenizer_of(kvc_bundle* bundle, kvc_tokenizer** tokenizer, kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (bundle == nullptr || tokenizer == nullptr) {
      fail(KVC_BAD_ARGUMENT, "kvc_tokenizer_of: expected a bundle and a place, got null");
    }
    *tokenizer = tokenizer_in(bundle);
  });
}
