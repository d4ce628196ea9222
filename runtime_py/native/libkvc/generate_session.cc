// Generators of sessions.
#include <memory>

#include "errors.h"
#include "generators.h"

using kvc::lib::Error;
using kvc::lib::fail;
using kvc::lib::generation::Model;

namespace {

class SessionModel : public Model {
 public:
  explicit SessionModel(kvc_session* session) : session_(session) {}

  const float* step(const int64_t* tokens, int64_t count, int64_t* vocabulary) override {
    kvc_error error{};
    const float* logits = nullptr;
    const kvc_code code = kvc_session_step(session_, tokens, count, &logits, vocabulary, &error);
    if (code != KVC_OK) throw Error{code, error.text};
    return logits;
  }

  int64_t position() override {
    int64_t position = 0;
    int32_t rows = 1;
    kvc_error error{};
    const kvc_code code = kvc_session_position(session_, 0, &position, &rows, &error);
    if (code == KVC_NO_POSITION) return kvc::lib::generation::kNone;
    if (code != KVC_OK) throw Error{code, error.text};
    if (rows != 1) fail(KVC_BAD_ARGUMENT, "session: expected one of one row, got %d rows", rows);
    return position;
  }

  int64_t capacity() override { return kvc_session_capacity(session_); }

 private:
  kvc_session* session_;
};

}  // namespace

kvc_code kvc_generator_open(const kvc_bundle* bundle, kvc_session* session, const char* settings,
                            kvc_generator** generator, kvc_error* error) {
  return kvc::lib::guarded(error, [&] {
    if (bundle == nullptr || session == nullptr || generator == nullptr) {
      fail(KVC_BAD_ARGUMENT,
           "kvc_generator_open: expected a bundle, a session and a place, got null");
    }
    const char* config = nullptr;
    kvc_error found{};
    const kvc_code code = kvc_get_metadata(bundle, "generation_config", &config, &found);
    if (code != KVC_OK && code != KVC_UNKNOWN_NAME) throw Error{code, found.text};
    auto model = std::make_unique<SessionModel>(session);
    if (code == KVC_UNKNOWN_NAME) config = nullptr;
    *generator =
        new kvc_generator(std::move(model), kvc::lib::generation::settings_of(config, settings));
  });
}
