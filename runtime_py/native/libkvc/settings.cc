#include "settings.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "errors.h"
#include "json.h"

namespace kvc::lib::generation {
namespace {

using Kind = Json::Kind;

constexpr int64_t kTransformersTopK = 50;  // its default where a generation_config has none

// ---- Forms of values: what each setting must be.

bool is_count(const Json& found) { return found.is(Kind::kInteger) && found.integer >= 0; }

bool is_number(const Json& found) { return found.is(Kind::kInteger) || found.is(Kind::kNumber); }

bool is_seed(const Json& found) {
  // Below 2**64: of twenty digits it is more than an int64.
  const std::string text = found.source();
  errno = 0;
  std::strtoull(text.c_str(), nullptr, 10);
  return is_number(found) && errno == 0 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

bool is_temperature(const Json& found) {
  return is_number(found) && found.number >= 0 && std::isfinite(found.number);
}

bool is_share(const Json& found) {
  return is_number(found) && found.number >= 0 && found.number <= 1;
}

bool is_penalty(const Json& found) { return is_temperature(found) && found.number > 0; }

bool is_finite(const Json& found) { return is_number(found) && std::isfinite(found.number); }

bool is_truth(const Json& found) { return found.is(Kind::kBool); }

bool is_beams(const Json& found) { return is_count(found) && found.integer > 0; }

bool is_early_stopping(const Json& found) {
  return is_truth(found) || (found.is(Kind::kText) && found.text == "never");
}

template <class F>
bool all(const Json& list, const F& is_item) {
  for (const Json& item : list.items) {
    if (!is_item(item)) return false;
  }
  return true;
}

// A list of items, or one item alone.
bool is_tokens(const Json& found) {
  return found.is(Kind::kList) ? all(found, is_count) : is_count(found);
}

bool is_text(const Json& found) { return found.is(Kind::kText) && !found.text.empty(); }

bool is_texts(const Json& found) {
  return found.is(Kind::kList) ? all(found, is_text) : is_text(found);
}

bool is_token_list(const Json& found) {
  return found.is(Kind::kList) && !found.items.empty() && all(found, is_count);
}

bool is_token_lists(const Json& found) {
  return found.is(Kind::kList) && all(found, is_token_list);
}

bool is_bias(const Json& found) {
  return found.is(Kind::kList) && found.items.size() == 2 && is_token_list(found.items[0]) &&
         is_finite(found.items[1]);
}

bool is_biases(const Json& found) { return found.is(Kind::kList) && all(found, is_bias); }

bool is_logit_bias(const Json& found) {
  if (!found.is(Kind::kObject)) return false;
  for (const auto& member : found.members) {
    const std::string& token = member.first;
    const bool digits = token.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || token.empty() || token.size() > 18 || !is_finite(member.second)) return false;
  }
  return true;
}

struct Known {
  const char* name;
  const char* alias;  // the name in transformers; null if it is the same
  bool (*fits)(const Json& found);
  const char* expected;
};

constexpr char kCount[] = "a whole number, 0 or more", kShare[] = "a number from 0 to 1";
constexpr char kFinite[] = "a finite number", kToken[] = "tokens, whole numbers of 0 or more";

const Known kKnown[] = {
    {"max_tokens", "max_new_tokens", is_count, kCount},
    {"max_length", nullptr, is_count, kCount},
    {"min_new_tokens", nullptr, is_count, kCount},
    {"min_length", nullptr, is_count, kCount},
    {"do_sample", nullptr, is_truth, "true or false"},
    {"temperature", nullptr, is_temperature, "a number, 0 or more"},
    {"top_k", nullptr, is_count, kCount},
    {"top_p", nullptr, is_share, kShare},
    {"min_p", nullptr, is_share, kShare},
    {"typical_p", nullptr, is_share, kShare},
    {"repetition_penalty", nullptr, is_penalty, "a number above 0"},
    {"frequency_penalty", nullptr, is_finite, kFinite},
    {"presence_penalty", nullptr, is_finite, kFinite},
    {"no_repeat_ngram_size", nullptr, is_count, kCount},
    {"sequence_bias", nullptr, is_biases,
     "pairs of a list of tokens and a number, such as [[[15, 8], -2.0]]"},
    {"logit_bias", nullptr, is_logit_bias,
     "an object of tokens and numbers, such as {\"15\": -2.0}"},
    {"bad_words_ids", nullptr, is_token_lists, "a list of lists of tokens, none empty"},
    {"num_beams", nullptr, is_beams, "a whole number, 1 or more"},
    {"length_penalty", nullptr, is_finite, kFinite},
    {"early_stopping", nullptr, is_early_stopping, "true, false or \"never\""},
    {"seed", nullptr, is_seed, "a whole number from 0 to 2**64 - 1"},
    {"stop_tokens", "eos_token_id", is_tokens, kToken},
    {"stop_strings", nullptr, is_texts, "texts that are not empty"},
    {"decoder_start_token_id", nullptr, is_count, kCount},
    {"forced_bos_token_id", nullptr, is_count, kCount},
    {"forced_eos_token_id", nullptr, is_tokens, kToken},
    {"suppress_tokens", nullptr, is_tokens, kToken},
    {"begin_suppress_tokens", nullptr, is_tokens, kToken},
};

// Settings of transformers that kvc lacks, and the numbers without effect.
struct Lacking {
  const char* name;
  int neutral, other;
};

constexpr int kNo = -1;  // no number is without effect

const Lacking kLacking[] = {
    {"diversity_penalty", 0, 0},
    {"dola_layers", kNo, kNo},
    {"encoder_no_repeat_ngram_size", 0, 0},
    {"encoder_repetition_penalty", 1, 1},
    {"epsilon_cutoff", 0, 1},
    {"eta_cutoff", 0, 1},
    {"exponential_decay_length_penalty", kNo, kNo},
    {"guidance_scale", 1, 1},
    {"max_time", kNo, kNo},
    {"num_beam_groups", 1, 1},
    {"num_beams", 1, 1},
    {"num_return_sequences", 1, 1},
    {"penalty_alpha", 0, 0},
    {"remove_invalid_values", kNo, kNo},
    {"token_healing", kNo, kNo},
    {"top_h", kNo, kNo},
    {"watermarking_config", kNo, kNo},
};

// ---- One source of settings.

class Source {
 public:
  Source(const char* text, const char* prefix) : prefix_(prefix) {
    is_there_ = text != nullptr;
    if (!is_there_) return;
    if (!Json::read(text, std::strlen(text), &root_) || !root_.is(Kind::kObject)) {
      fail(KVC_BAD_ARGUMENT, "%ssettings: expected a JSON object, got %s", prefix_,
           shown(text).c_str());
    }
    for (const Known& known : kKnown) check(known);
  }

  bool is_there() const { return is_there_; }

  // The value of a setting, null if it is absent.
  const Json* find(const char* name) const {
    const Json* found = root_.find(name);
    return found == nullptr || found->is(Kind::kNull) ? nullptr : found;
  }

  const Json* find(const Known& known) const {
    const Json* found = find(known.name);
    return found == nullptr && known.alias != nullptr ? find(known.alias) : found;
  }

  void refuse_unknown() const {
    for (const auto& member : root_.members) {
      bool is_known = member.second.is(Kind::kNull);
      for (const Known& known : kKnown) {
        is_known |=
            member.first == known.name || (known.alias != nullptr && member.first == known.alias);
      }
      if (!is_known) {
        fail(KVC_BAD_ARGUMENT, "%s is not a setting of kvc_generate", shown(member.first).c_str());
      }
    }
    const Json* beams = find("num_beams");
    if (beams != nullptr && beams->integer != 1) {
      fail(KVC_BAD_ARGUMENT, "num_beams: expected 1: this does not search for beams, got %s",
           shown(beams->source()).c_str());
    }
  }

  // What has no effect, as sentences.
  std::string ignored() const {
    std::string missing;
    for (const Lacking& lacking : kLacking) {
      const Json* found = find(lacking.name);
      if (found == nullptr || (found->is(Kind::kBool) && !found->truth)) continue;
      const bool number = is_number(*found);
      if (number && (found->number == lacking.neutral || found->number == lacking.other)) continue;
      missing +=
          (missing.empty() ? "" : ", ") + std::string(lacking.name) + "=" + shown(found->source());
    }
    if (missing.empty()) return "";
    return "the bundle's generation_config: " + missing +
           ": ignored; kvc only takes the likeliest token or samples";
  }

 private:
  void check(const Known& known) const {
    if (known.alias != nullptr && find(known.name) != nullptr && find(known.alias) != nullptr) {
      fail(KVC_BAD_ARGUMENT,
           "%s%s: expected no value, since %s means the same and is given too, got %s", prefix_,
           known.name, known.alias, shown(find(known.name)->source()).c_str());
    }
    const Json* found = find(known);
    if (found == nullptr || known.fits(*found)) return;
    const char* name = find(known.name) != nullptr ? known.name : known.alias;
    fail(KVC_BAD_ARGUMENT, "%s%s: expected %s, got %s", prefix_, name, known.expected,
         shown(found->source()).c_str());
  }

  const char* prefix_;
  bool is_there_ = false;
  Json root_;
};

// ---- Values of both sources; the caller's come first.

class Both {
 public:
  Both(const Source& bundle, const Source& given) : bundle_(bundle), given_(given) {}

  const Json* find(const char* name) const {
    for (const Known& known : kKnown) {
      if (std::strcmp(known.name, name) != 0) continue;
      const Json* found = given_.find(known);
      return found != nullptr ? found : bundle_.find(known);
    }
    return nullptr;
  }

  void read(const char* name, int64_t* value) const {
    if (const Json* found = find(name)) *value = found->integer;
  }

  void read(const char* name, double* value) const {
    if (const Json* found = find(name)) *value = found->number;
  }

  void read(const char* name, Tokens* value) const {
    if (const Json* found = find(name)) *value = tokens_in(*found);
  }

  static Tokens tokens_in(const Json& found) {
    Tokens made;
    for (const Json& item : found.items) made.push_back(item.integer);
    if (!found.is(Kind::kList)) made.push_back(found.integer);
    return made;
  }

 private:
  const Source& bundle_;
  const Source& given_;
};

// 0 takes the likeliest token. Sampling is asked for by one of these settings of the caller; by
// those of the bundle only beside its `do_sample`, as in transformers.
double temperature_of(const Source& bundle, const Source& given) {
  bool samples = false;
  for (const char* name : {"temperature", "top_k", "top_p", "min_p", "typical_p"}) {
    samples |= given.find(name) != nullptr;
  }
  const Json* of_bundle = bundle.find("do_sample");
  samples |= of_bundle != nullptr && of_bundle->truth;
  const Json* asked = given.find("do_sample");
  if (!(asked != nullptr ? asked->truth : samples)) return 0;
  double temperature = 1;
  Both(bundle, given).read("temperature", &temperature);
  if (temperature == 0 && asked != nullptr) {
    fail(KVC_BAD_ARGUMENT, "temperature: expected above 0, since do_sample is true, got 0");
  }
  return temperature;
}

// The caller's limit replaces both of the bundle's; of two limits, max_tokens holds.
void read_limits(const Source& bundle, const Source& given, Settings* settings) {
  const Source none(nullptr, "");
  const Both own(none, given);
  const bool asked = own.find("max_tokens") != nullptr || own.find("max_length") != nullptr;
  const Both limits(none, asked ? given : bundle);
  limits.read("max_tokens", &settings->max_tokens);
  if (settings->max_tokens == kNone) limits.read("max_length", &settings->max_length);
}

void read_biases(const Both& both, Settings* settings) {
  if (const Json* found = both.find("sequence_bias")) {
    for (const Json& pair : found->items) {
      settings->sequence_bias.push_back({Both::tokens_in(pair.items[0]), pair.items[1].number});
    }
  }
  if (const Json* found = both.find("logit_bias")) {
    for (const auto& member : found->members) {
      settings->logit_bias.push_back({{std::atoll(member.first.c_str())}, member.second.number});
    }
  }
  if (const Json* found = both.find("bad_words_ids")) {
    for (const Json& word : found->items) settings->bad_words.push_back(Both::tokens_in(word));
  }
}

void read_texts(const Both& both, Settings* settings) {
  if (const Json* found = both.find("seed")) {
    settings->has_seed = true;
    settings->seed = std::strtoull(found->source().c_str(), nullptr, 10);
  }
  if (const Json* found = both.find("stop_strings")) {
    for (const Json& item : found->items) settings->stop_strings.push_back(item.text);
    if (found->is(Kind::kText)) settings->stop_strings.push_back(found->text);
  }
}

}  // namespace

Settings settings_of(const char* config, const char* given_text) {
  const Source bundle(config, "the bundle's generation_config, "), given(given_text, "");
  given.refuse_unknown();
  const Both both(bundle, given);
  Settings settings;
  if (bundle.is_there()) settings.top_k = kTransformersTopK;
  read_limits(bundle, given, &settings);
  settings.temperature = temperature_of(bundle, given);
  both.read("min_new_tokens", &settings.min_new_tokens);
  both.read("min_length", &settings.min_length);
  both.read("top_k", &settings.top_k);
  both.read("top_p", &settings.top_p);
  both.read("min_p", &settings.min_p);
  both.read("typical_p", &settings.typical_p);
  both.read("repetition_penalty", &settings.repetition_penalty);
  both.read("frequency_penalty", &settings.frequency_penalty);
  both.read("presence_penalty", &settings.presence_penalty);
  both.read("no_repeat_ngram_size", &settings.no_repeat_ngram_size);
  both.read("stop_tokens", &settings.stop_tokens);
  both.read("forced_bos_token_id", &settings.forced_bos_token);
  both.read("forced_eos_token_id", &settings.forced_eos_tokens);
  both.read("suppress_tokens", &settings.suppress_tokens);
  both.read("begin_suppress_tokens", &settings.begin_suppress_tokens);
  read_biases(both, &settings);
  read_texts(both, &settings);
  settings.ignored = bundle.ignored();
  return settings;
}

}  // namespace kvc::lib::generation
