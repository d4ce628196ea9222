// The functions of kvc.h for bundles.
#include <cstring>

#include "errors.h"
#include "json.h"
#include "session.h"

using kvc::lib::Bundle;
using kvc::lib::fail;
using kvc::lib::guarded;
using kvc::lib::Method;

namespace {

void need(const void* pointer, const char* name) {
  if (pointer == nullptr) fail(KVC_BAD_ARGUMENT, "%s is null", name);
}

const kvc_bundle& opened(const kvc_bundle* bundle) {
  need(bundle, "the bundle");
  return *bundle;
}

const Method& method_at(const kvc_bundle* bundle, int32_t number) {
  const Bundle& shared = *opened(bundle).shared;
  const auto& visible = shared.methods();
  if (number < 0 || static_cast<size_t>(number) >= visible.size()) {
    fail(KVC_BAD_ARGUMENT, "method %d: the bundle has %zu methods", number, visible.size());
  }
  return shared.program().methods[static_cast<size_t>(visible[static_cast<size_t>(number)])];
}

void give_type(const std::vector<kvc_type>& types, int32_t number, const char* what,
               kvc_type* found) {
  need(found, "where the type is put");
  if (number < 0 || static_cast<size_t>(number) >= types.size()) {
    fail(KVC_BAD_ARGUMENT, "%s %d: there are %zu", what, number, types.size());
  }
  *found = types[static_cast<size_t>(number)];
}

}  // namespace

kvc_bundle::kvc_bundle(std::shared_ptr<Bundle> bundle) : shared(std::move(bundle)) {
  const auto& program = shared->program();
  for (const int number : shared->methods()) {
    const Method& method = program.methods[static_cast<size_t>(number)];
    inputs.emplace_back();
    for (const auto& input : method.inputs) {
      inputs.back().push_back(describe(input.name, input.type));
    }
    outputs.emplace_back();
    for (const auto& output : method.outputs) outputs.back().push_back(describe("", output));
  }
  for (const auto& state : program.states) states.push_back(describe(state.name, state.type));
  metadata_keys = "[";
  for (const auto& one : program.metadata) {
    metadata_keys += (metadata_keys.size() > 1 ? "," : "") + kvc::lib::quoted(one.first);
  }
  metadata_keys += "]";
}

kvc_type kvc_bundle::describe(const std::string& name, const kvc::lib::Type& type) {
  const auto& expressions = shared->program().expressions;
  kvc_type made{};
  texts.push_back(name);
  made.name = texts.back().c_str();
  made.dtype = type.dtype;
  made.rank = static_cast<int32_t>(type.dims.size());
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const auto bounds = expressions.bounds(type.dims[i]);
    made.dims[i] = kvc_dim{bounds.first, bounds.second, nullptr};
    if (!type.dims[i].affine) continue;
    texts.push_back(expressions.text(type.dims[i]));
    made.dims[i].text = texts.back().c_str();
  }
  return made;
}

extern "C" {

kvc_code kvc_open(const char* path, kvc_bundle** bundle, kvc_error* error) {
  return guarded(error, [&] {
    need(path, "the path");
    need(bundle, "where the bundle is put");
    *bundle = nullptr;
    *bundle = new kvc_bundle(std::make_shared<Bundle>(path));
  });
}

kvc_code kvc_open_memory(const void* bytes, size_t nbytes, kvc_bundle** bundle, kvc_error* error) {
  return guarded(error, [&] {
    need(bytes, "the bundle's memory");
    need(bundle, "where the bundle is put");
    *bundle = nullptr;
    *bundle = new kvc_bundle(std::make_shared<Bundle>(bytes, nbytes));
  });
}

void kvc_close(kvc_bundle* bundle) { delete bundle; }

kvc_code kvc_set_threads(kvc_bundle* bundle, int32_t threads, kvc_error* error) {
  return guarded(error, [&] {
    opened(bundle);
    if (threads < 1 || threads > 64) {
      fail(KVC_BAD_ARGUMENT, "threads: expected 1..64, found %d", threads);
    }
    bundle->shared->threads = threads;
  });
}

int32_t kvc_method_count(const kvc_bundle* bundle) {
  return bundle == nullptr ? 0 : static_cast<int32_t>(bundle->inputs.size());
}

kvc_code kvc_get_method(const kvc_bundle* bundle, int32_t method, kvc_method* found,
                        kvc_error* error) {
  return guarded(error, [&] {
    need(found, "where the method is put");
    const Method& own = method_at(bundle, method);
    int32_t row_lengths = -1;
    for (const auto& advance : own.advances) {
      if (row_lengths < 0) row_lengths = advance.lengths;
    }
    *found = kvc_method{own.name.c_str(), own.role.c_str(), static_cast<int32_t>(own.inputs.size()),
                        static_cast<int32_t>(own.outputs.size()), row_lengths};
  });
}

int32_t kvc_find_method(const kvc_bundle* bundle, const char* name) {
  return bundle == nullptr || name == nullptr ? -1 : bundle->shared->find_method(name);
}

kvc_code kvc_get_input(const kvc_bundle* bundle, int32_t method, int32_t input, kvc_type* found,
                       kvc_error* error) {
  return guarded(error, [&] {
    method_at(bundle, method);
    give_type(bundle->inputs[static_cast<size_t>(method)], input, "input", found);
  });
}

kvc_code kvc_get_output(const kvc_bundle* bundle, int32_t method, int32_t output, kvc_type* found,
                        kvc_error* error) {
  return guarded(error, [&] {
    method_at(bundle, method);
    give_type(bundle->outputs[static_cast<size_t>(method)], output, "output", found);
  });
}

int32_t kvc_state_count(const kvc_bundle* bundle) {
  return bundle == nullptr ? 0 : static_cast<int32_t>(bundle->states.size());
}

kvc_code kvc_get_state(const kvc_bundle* bundle, int32_t state, kvc_type* found,
                       kvc_error* error) {
  return guarded(error, [&] { give_type(opened(bundle).states, state, "state", found); });
}

int32_t kvc_symbol_count(const kvc_bundle* bundle) {
  if (bundle == nullptr) return 0;
  return static_cast<int32_t>(bundle->shared->program().expressions.symbols.size());
}

kvc_code kvc_get_symbol(const kvc_bundle* bundle, int32_t symbol, kvc_symbol* found,
                        kvc_error* error) {
  return guarded(error, [&] {
    need(found, "where the symbol is put");
    const auto& program = opened(bundle).shared->program();
    const auto& symbols = program.expressions.symbols;
    if (symbol < 0 || static_cast<size_t>(symbol) >= symbols.size()) {
      fail(KVC_BAD_ARGUMENT, "symbol %d: there are %zu", symbol, symbols.size());
    }
    const auto& own = symbols[static_cast<size_t>(symbol)];
    const bool fixed = program.of_sessions[static_cast<size_t>(symbol)];
    *found = kvc_symbol{own.name.c_str(), own.lower, own.upper, fixed};
  });
}

kvc_code kvc_get_metadata(const kvc_bundle* bundle, const char* key, const char** json,
                          kvc_error* error) {
  return guarded(error, [&] {
    need(key, "the key");
    need(json, "where the text is put");
    if (*key == '\0') {
      *json = opened(bundle).metadata_keys.c_str();
      return;
    }
    for (const auto& one : opened(bundle).shared->program().metadata) {
      if (one.first != key) continue;
      *json = one.second.c_str();
      return;
    }
    fail(KVC_UNKNOWN_NAME, "the bundle has no metadata %s; it has %s", kvc::lib::shown(key).c_str(),
         bundle->metadata_keys.c_str());
  });
}

kvc_code kvc_get_file(kvc_bundle* bundle, const char* name, const void** bytes, size_t* nbytes,
                      kvc_error* error) {
  return guarded(error, [&] {
    need(name, "the name");
    need(bytes, "where the bytes are put");
    need(nbytes, "where their number is put");
    Bundle& shared = *opened(bundle).shared;
    const auto& names = shared.program().names;
    std::string known;
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].format != "file" || names[i].name.compare(0, 6, "files/") != 0) continue;
      const std::string own = names[i].name.substr(6);
      if (own == name) {
        *bytes = shared.constant(static_cast<int>(i));
        *nbytes = static_cast<size_t>(shared.constant_nbytes(static_cast<int>(i)));
        return;
      }
      known += (known.empty() ? "" : ", ") + own;
    }
    fail(KVC_UNKNOWN_NAME, "the bundle has no file %s; it has %s", kvc::lib::shown(name).c_str(),
         known.empty() ? "none" : known.c_str());
  });
}

}  // extern "C"
