// The functions of kvc.h for sessions.
#include <cstring>

#include "errors.h"
#include "rewinding.h"
#include "session.h"
#include "snapshots.h"

using kvc::lib::Bundle;
using kvc::lib::fail;
using kvc::lib::guarded;
using kvc::lib::Rows;
using kvc::lib::Session;
using kvc::lib::Sizes;
using kvc::lib::StateMemory;
using kvc::lib::Use;

namespace {

void need(const void* pointer, const char* name) {
  if (pointer == nullptr) fail(KVC_BAD_ARGUMENT, "%s is null", name);
}

kvc_session* new_session(const std::shared_ptr<Bundle>& bundle,
                         std::unique_ptr<StateMemory> memory) {
  return new kvc_session{Session(bundle, std::move(memory))};
}

// The number of a method in the program.
int method_of(Session& session, int32_t number) {
  const auto& visible = session.bundle().methods();
  if (number < 0 || static_cast<size_t>(number) >= visible.size()) {
    fail(KVC_BAD_ARGUMENT, "method %d: the bundle has %zu methods", number, visible.size());
  }
  return visible[static_cast<size_t>(number)];
}

// Gives numbers of rows into the caller's memory.
void give_rows(const Rows& found, int64_t* numbers, int32_t* rows) {
  need(rows, "where the number of rows is put");
  const int32_t room = *rows, count = static_cast<int32_t>(found.size());
  *rows = count;
  if (numbers == nullptr) return;
  if (room < count) fail(KVC_BAD_ARGUMENT, "there is room for %d rows, expected %d", room, count);
  std::copy(found.begin(), found.end(), numbers);
}

void check_arrays(const kvc_array* inputs, int32_t input_count, const kvc_array* outputs,
                  int32_t output_count, size_t expected) {
  if (input_count < 0 || (input_count > 0 && inputs == nullptr)) {
    fail(KVC_BAD_ARGUMENT, "the inputs are null");
  }
  if (output_count > 0) need(outputs, "the outputs' array");
  if (output_count != static_cast<int32_t>(expected)) {
    fail(KVC_BAD_ARGUMENT, "the method has %zu outputs, found %d", expected, output_count);
  }
}

}  // namespace

extern "C" {

kvc_code kvc_session_open(kvc_bundle* bundle, const kvc_size* sizes, int32_t count,
                          int64_t capacity, kvc_session** session, kvc_error* error) {
  return guarded(error, [&] {
    need(bundle, "the bundle");
    need(session, "where the session is put");
    *session = nullptr;
    if (count > 0) need(sizes, "the sizes");
    if (capacity < 0) {
      fail(KVC_BAD_ARGUMENT, "capacity: expected 0 or more, found %lld",
           static_cast<long long>(capacity));
    }
    Bundle& shared = *bundle->shared;
    shared.lists();
    const auto& program = shared.program();
    Sizes wanted(program.expressions.symbols.size(), kvc::lib::kUnknown);
    for (int32_t i = 0; i < count; ++i) {
      need(sizes[i].symbol, "the name of a size");
      const int symbol = program.find_symbol(sizes[i].symbol);
      if (symbol < 0) {
        fail(KVC_UNKNOWN_NAME, "the bundle has no size %s",
             kvc::lib::shown(sizes[i].symbol).c_str());
      }
      wanted[static_cast<size_t>(symbol)] = sizes[i].size;
    }
    const int64_t limit = capacity == 0 ? -1 : capacity;
    const Sizes chosen = kvc::lib::choose_sizes(program, wanted, limit);
    const int64_t most = kvc::lib::choose_capacity(program, chosen, limit);
    *session = new_session(bundle->shared, std::make_unique<StateMemory>(shared, chosen, most));
  });
}

kvc_code kvc_session_close(kvc_session* session, kvc_error* error) {
  return guarded(error, [&] {
    if (session == nullptr) return;
    if (session->used.exchange(true)) {
      fail(KVC_BUSY, "another thread uses the session; close it afterwards");
    }
    delete session;
  });
}

kvc_code kvc_session_fork(kvc_session* session, kvc_session** fork, kvc_error* error) {
  return guarded(error, [&] {
    need(fork, "where the session is put");
    *fork = nullptr;
    const Use use(session);
    const StateMemory& own = use->memory();
    own.check_usable();
    auto memory = std::make_unique<StateMemory>(use->bundle(), own.sizes(), own.capacity());
    memory->follow(own);
    *fork = new_session(use->shared_bundle(), std::move(memory));
  });
}

kvc_code kvc_session_reset(kvc_session* session, kvc_error* error) {
  return guarded(error, [&] { Use(session)->memory().reset(); });
}

kvc_code kvc_session_rewind(kvc_session* session, const int64_t* counts, int32_t count,
                            kvc_error* error) {
  return guarded(error, [&] {
    const Use use(session);
    need(counts, "the counts");
    if (count < 1) fail(KVC_BAD_ARGUMENT, "expected one count or more, found %d", count);
    kvc::lib::rewind(use->memory(), Rows(counts, counts + count));
  });
}

kvc_code kvc_session_rewindable(kvc_session* session, int64_t* counts, int32_t* rows,
                                kvc_error* error) {
  return guarded(error, [&] {
    const Use use(session);
    give_rows(kvc::lib::most_rewindable(use->memory()), counts, rows);
  });
}

kvc_code kvc_session_position(kvc_session* session, int32_t cursor, int64_t* positions,
                              int32_t* rows, kvc_error* error) {
  return guarded(error, [&] {
    const Use use(session);
    Rows found;
    if (cursor < 0) fail(KVC_BAD_ARGUMENT, "there is no cursor %d", cursor);
    use->memory().position(cursor, &found);
    give_rows(found, positions, rows);
  });
}

int64_t kvc_session_capacity(const kvc_session* session) {
  return session == nullptr ? -1 : session->session.memory().capacity();
}

kvc_code kvc_session_state(kvc_session* session, int32_t state, kvc_array* content,
                           int64_t strides[KVC_MOST_DIMS], kvc_error* error) {
  return guarded(error, [&] {
    const Use use(session);
    need(content, "where the state is put");
    need(strides, "where its strides are put");
    StateMemory& memory = use->memory();
    if (state < 0 || static_cast<size_t>(state) >= memory.count()) {
      fail(KVC_BAD_ARGUMENT, "state %d: there are %zu", state, memory.count());
    }
    const auto& layout = memory.layout(state);
    const auto& kind = memory.kind(state);
    *content = kvc_array{memory.base(state), kind.state.type.dtype, layout.rank, {}};
    std::copy(layout.dims, layout.dims + layout.rank, content->dims);
    std::copy(layout.strides, layout.strides + layout.rank, strides);
    if (kind.grows()) content->dims[layout.axis] = memory.lengths[static_cast<size_t>(state)];
  });
}

kvc_code kvc_session_run(kvc_session* session, int32_t method, const kvc_array* inputs,
                         int32_t input_count, kvc_array* outputs, int32_t output_count,
                         kvc_error* error) {
  return guarded(error, [&] {
    const Use use(session);
    const int number = method_of(session->session, method);
    const auto& own = use->bundle().program().methods[static_cast<size_t>(number)];
    check_arrays(inputs, input_count, outputs, output_count, own.outputs.size());
    kvc::lib::Caller& caller = use->caller();
    caller.run(number, inputs, input_count, outputs, output_count);
    for (int32_t i = 0; i < output_count; ++i) {
      const kvc_array& made = caller.results[static_cast<size_t>(i)];
      if (outputs[i].data == nullptr) {
        outputs[i] = made;
        continue;
      }
      int64_t nbytes = kvc::lib::dtype_nbytes(made.dtype);
      for (int axis = 0; axis < made.rank; ++axis) nbytes *= made.dims[axis];
      std::memcpy(outputs[i].data, made.data, static_cast<size_t>(nbytes));
    }
  });
}

kvc_code kvc_session_shapes(kvc_session* session, int32_t method, const kvc_array* inputs,
                            int32_t input_count, kvc_array* outputs, int32_t output_count,
                            kvc_error* error) {
  return guarded(error, [&] {
    const Use use(session);
    const int number = method_of(session->session, method);
    const auto& own = use->bundle().program().methods[static_cast<size_t>(number)];
    check_arrays(inputs, input_count, outputs, output_count, own.outputs.size());
    use->caller().find_shapes(number, inputs, input_count);
    for (int32_t i = 0; i < output_count; ++i) {
      outputs[i] = use->caller().results[static_cast<size_t>(i)];
    }
  });
}

kvc_code kvc_session_step(kvc_session* session, const int64_t* tokens, int64_t count,
                          const float** logits, int64_t* vocabulary, kvc_error* error) {
  return guarded(error, [&] {
    const Use use(session);
    need(tokens, "the tokens");
    need(logits, "where the logits are put");
    need(vocabulary, "where their number is put");
    *logits = use->caller().step(tokens, count, vocabulary);
  });
}

kvc_code kvc_session_save(kvc_session* session, const char* path, const char* attached,
                          const int64_t* pending, int64_t count, kvc_error* error) {
  return guarded(error, [&] {
    const Use use(session);
    need(path, "the path");
    StateMemory& memory = use->memory();
    if (count > 0) {
      need(pending, "the pending tokens");
      const size_t rows = kvc::lib::count_rows(memory.program(), memory.sizes(), 0);
      if (rows != 1) {
        fail(KVC_BAD_ARGUMENT, "pending tokens: expected a session of one row, it has %zu", rows);
      }
      for (int64_t i = 0; i < count; ++i) {
        if (pending[i] < 0) fail(KVC_BAD_ARGUMENT, "a pending token is negative");
      }
      memory.pending.assign(1, Rows(pending, pending + count));
    }
    const std::string text = attached == nullptr ? "" : attached;
    kvc::lib::save_snapshot(path, use->bundle(), memory, text);
  });
}

kvc_code kvc_session_restore(kvc_bundle* bundle, const char* path, kvc_session** session,
                             kvc_error* error) {
  return guarded(error, [&] {
    need(bundle, "the bundle");
    need(path, "the path");
    need(session, "where the session is put");
    *session = nullptr;
    *session = new_session(bundle->shared, kvc::lib::load_snapshot(path, *bundle->shared));
  });
}

kvc_code kvc_session_attached(kvc_session* session, int32_t row, const char** attached,
                              const int64_t** pending, int64_t* count, kvc_error* error) {
  return guarded(error, [&] {
    const Use use(session);
    const StateMemory& memory = use->memory();
    const auto& all = memory.pending;
    if (row < 0 || (!all.empty() && static_cast<size_t>(row) >= all.size())) {
      fail(KVC_BAD_ARGUMENT, "row %d: there are %zu", row, all.size());
    }
    if (attached != nullptr) *attached = memory.attached.empty() ? "{}" : memory.attached.c_str();
    const Rows* own = all.empty() ? nullptr : &all[static_cast<size_t>(row)];
    if (pending != nullptr) *pending = own == nullptr ? nullptr : own->data();
    if (count != nullptr) *count = own == nullptr ? 0 : static_cast<int64_t>(own->size());
  });
}

}  // extern "C"
