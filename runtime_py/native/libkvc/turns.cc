// Conversations as text: the texts around messages that `kvc chat --turns` writes.
#include <algorithm>
#include <cstring>
#include <string>

#include "errors.h"
#include "json.h"
#include "kvc_text.h"

using kvc::lib::fail;
using kvc::lib::Json;

struct kvc_turns {
  std::string before, after, between;  // the user's messages
  bool has_system = false;
  std::string before_system, after_system;
  bool trims = false;
  std::string stop_tokens, text;
};

namespace {

[[noreturn]] void refuse(const char* what) {
  fail(KVC_BAD_ARGUMENT, "turns: expected the JSON of `kvc chat --turns`: %s", what);
}

// Two texts of a list.
void read_pair(const Json* found, std::string* first, std::string* second) {
  const bool fits = found != nullptr && found->items.size() == 2 &&
                    found->items[0].is(Json::Kind::kText) && found->items[1].is(Json::Kind::kText);
  if (!fits) refuse("two texts");
  *first = found->items[0].text;
  *second = found->items[1].text;
}

kvc_turns turns_in(const char* json, size_t nbytes) {
  Json root;
  if (!Json::read(json, nbytes, &root) || !root.is(Json::Kind::kObject)) refuse("an object");
  kvc_turns made;
  read_pair(root.find("first"), &made.before, &made.after);
  const Json *between = root.find("between"), *system = root.find("system");
  const Json *trims = root.find("trims"), *stops = root.find("stop_tokens");
  if (between == nullptr || !between->is(Json::Kind::kText)) refuse("the text between turns");
  if (trims == nullptr || !trims->is(Json::Kind::kBool)) refuse("whether it trims");
  if (stops == nullptr || !stops->is(Json::Kind::kList)) refuse("a list of stop tokens");
  made.between = between->text;
  made.trims = trims->truth;
  made.stop_tokens = stops->source();
  made.has_system = system != nullptr && !system->is(Json::Kind::kNull);
  if (made.has_system) read_pair(system, &made.before_system, &made.after_system);
  return made;
}

std::string trimmed(const std::string& text) {
  const char* spaces = " \t\n\r\v\f";
  const size_t first = text.find_first_not_of(spaces);
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(spaces) - first + 1);
}

}  // namespace

kvc_code kvc_turns_open(const void* json, size_t nbytes, kvc_turns** turns, kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (json == nullptr || turns == nullptr) {
      fail(KVC_BAD_ARGUMENT, "kvc_turns_open: expected bytes and a place, got null");
    }
    *turns = new kvc_turns(turns_in(static_cast<const char*>(json), nbytes));
  });
}

void kvc_turns_close(kvc_turns* turns) { delete turns; }

kvc_code kvc_turns_text(kvc_turns* turns, int32_t is_first, const char* system, const char* said,
                        const char** text, kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (turns == nullptr || said == nullptr || text == nullptr) {
      fail(KVC_BAD_ARGUMENT, "kvc_turns_text: expected turns, a message and a place, got null");
    }
    if (system != nullptr && !turns->has_system) {
      fail(KVC_BAD_ARGUMENT, "the model's chat template has no system message");
    }
    std::string before = is_first ? turns->before : turns->between;
    if (is_first && system != nullptr) {
      before =
          turns->before_system + (turns->trims ? trimmed(system) : system) + turns->after_system;
    }
    turns->text = before + (turns->trims ? trimmed(said) : said) + turns->after;
    *text = turns->text.c_str();
  });
}

const char* kvc_turns_stop_tokens(const kvc_turns* turns) { return turns->stop_tokens.c_str(); }
