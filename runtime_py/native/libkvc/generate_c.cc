// The C functions of kvc_generate.h, but for what needs a session (generate_session.cc).
#include <memory>
#include <string>

#include "errors.h"
#include "generators.h"
#include "json.h"

using kvc::lib::Error;
using kvc::lib::fail;
using kvc::lib::generation::Model;
using kvc::lib::generation::Sampler;
using kvc::lib::generation::Settings;
using kvc::lib::generation::Tokens;

namespace {

// A model in the caller's own code.
class SourceModel : public Model {
 public:
  explicit SourceModel(const kvc_source& source) : source_(source) {}

  const float* step(const int64_t* tokens, int64_t count, int64_t* vocabulary) override {
    kvc_error error{};
    const float* logits = nullptr;
    const kvc_code code = source_.step(source_.context, tokens, count, &logits, vocabulary, &error);
    if (code != KVC_OK) throw Error{code, error.text};
    return logits;
  }

  int64_t position() override { return source_.position(source_.context); }
  int64_t capacity() override { return source_.capacity; }

 private:
  kvc_source source_;
};

Tokens tokens_of(const int64_t* tokens, int64_t count) {
  return tokens == nullptr ? Tokens() : Tokens(tokens, tokens + count);
}

}  // namespace

kvc_generator::kvc_generator(std::unique_ptr<Model> made, const Settings& settings)
    : model(std::move(made)), ignored(settings.ignored), generator(*model, settings) {
  stop_strings = "[";
  for (const std::string& text : settings.stop_strings) {
    stop_strings += (stop_strings.size() > 1 ? ", " : "") + kvc::lib::quoted(text);
  }
  stop_strings += "]";
}

struct kvc_sampler {
  Settings settings;
  Sampler sampler;
};

kvc_code kvc_generator_open_source(const kvc_source* source, const char* config,
                                   const char* settings, kvc_generator** generator,
                                   kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (source == nullptr || generator == nullptr) {
      fail(KVC_BAD_ARGUMENT, "kvc_generator_open_source: expected a source and a place, got null");
    }
    auto model = std::make_unique<SourceModel>(*source);
    *generator =
        new kvc_generator(std::move(model), kvc::lib::generation::settings_of(config, settings));
  });
}

void kvc_generator_close(kvc_generator* generator) { delete generator; }

const char* kvc_generator_ignored(const kvc_generator* generator) {
  return generator->ignored.c_str();
}

const char* kvc_generator_stop_strings(const kvc_generator* generator) {
  return generator->stop_strings.c_str();
}

kvc_code kvc_generate(kvc_generator* generator, const int64_t* history, int64_t history_count,
                      const int64_t* prompt, int64_t prompt_count, kvc_on_token on_token,
                      void* context, kvc_answer* answer, kvc_error* error) {
  kvc_answer unused;
  return kvc::lib::guarded(error, [&] {
    if (generator == nullptr || (prompt == nullptr && prompt_count > 0)) {
      fail(KVC_BAD_ARGUMENT, "kvc_generate: expected a generator and a prompt, got null");
    }
    generator->generator.generate(tokens_of(history, history_count), prompt, prompt_count, on_token,
                                  context, answer != nullptr ? answer : &unused);
  });
}

kvc_code kvc_sampler_open(const char* config, const char* settings, kvc_sampler** sampler,
                          kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (sampler == nullptr) fail(KVC_BAD_ARGUMENT, "kvc_sampler_open: expected a place, got null");
    *sampler = new kvc_sampler{kvc::lib::generation::settings_of(config, settings), {}};
  });
}

void kvc_sampler_close(kvc_sampler* sampler) { delete sampler; }

kvc_code kvc_sampler_begin(kvc_sampler* sampler, const int64_t* before, int64_t count,
                           int64_t vocabulary, kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (sampler == nullptr || vocabulary < 1) {
      fail(KVC_BAD_ARGUMENT, "kvc_sampler_begin: expected a sampler and a vocabulary");
    }
    sampler->sampler.begin(sampler->settings, tokens_of(before, count), count, vocabulary);
  });
}

kvc_code kvc_sampler_choose(kvc_sampler* sampler, const float* logits, int64_t* token,
                            kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (sampler == nullptr || logits == nullptr || token == nullptr) {
      fail(KVC_BAD_ARGUMENT,
           "kvc_sampler_choose: expected a sampler, logits and a place, got null");
    }
    *token = sampler->sampler.choose(logits);
  });
}
