#include "entries.h"

#include <algorithm>

namespace kvc::lib {
namespace {

// Whether a kind can undo a write of a mode without a copy; as `Kind::is_risk`.
bool is_risk(const State& state, AccessMode mode) {
  switch (state.kind) {
    case StateKind::kCounter: return false;
    case StateKind::kAppend: return mode != AccessMode::kAppend;
    case StateKind::kRing: return !state.has_window;
    case StateKind::kLinear: return !state.at_position() || mode != AccessMode::kSlots;
    default: return true;
  }
}

StateWrites writes_of(const Program& program, const Method& method, int number) {
  const State& state = program.states[static_cast<size_t>(number)];
  StateWrites found;
  found.state = number;
  found.placed = state.cursor >= 0;
  found.cursor = std::max(state.cursor, 0);
  const Advance* advance = found.placed ? method.advance_of(state.cursor) : nullptr;
  found.slots = advance != nullptr && advance->tokens.has_value();
  found.piecewise = advance != nullptr;
  for (const Write& write : method.written) {
    if (write.state != number) continue;
    found.any = true;
    found.slots = found.slots && write.mode == AccessMode::kSlots;
    const bool whole = advance != nullptr && advance->tokens && write.size == *advance->tokens;
    found.piecewise = found.piecewise && !whole;
    if (is_risk(state, write.mode)) found.risks.push_back(write);
  }
  return found;
}

bool takes_tokens(const Method& method, int row_lengths) {
  const size_t inputs = row_lengths >= 0 ? 2 : 1;
  if (method.role.empty() || method.inputs.size() != inputs || row_lengths == 0) return false;
  const Type& tokens = method.inputs[0].type;
  if (tokens.dtype != 7 || tokens.dims.size() != 2) return false;  // int64
  return std::all_of(method.advances.begin(), method.advances.end(), [&](const Advance& one) {
    return one.tokens && *one.tokens == tokens.dims[1];
  });
}

// The encoder whose states a method reads.
void find_encoder(const Program& program, MethodEntry* entry) {
  for (size_t i = 0; i < program.methods.size(); ++i) {
    const Method& encode = program.methods[i];
    if (encode.role != "encode" || encode.adapts) continue;
    int least = -1;
    for (const int state : entry->method->states_read) {
      const int cursor = program.states[static_cast<size_t>(state)].cursor;
      const bool moved = cursor >= 0 && encode.advance_of(cursor) != nullptr;
      if (moved && (least < 0 || cursor < least)) least = cursor;
    }
    if (least < 0) continue;
    entry->needs_cursor = least;
    entry->encoder = static_cast<int>(i);
    return;
  }
}

std::vector<Growth> growth_of(const Program& program, const Method& method) {
  std::vector<Growth> found;
  for (const Write& write : method.written) {
    const State& state = program.states[static_cast<size_t>(write.state)];
    if (state.kind != StateKind::kAppend) continue;
    if (write.mode != AccessMode::kAppend && write.mode != AccessMode::kReplace) continue;
    auto own = std::find_if(found.begin(), found.end(),
                            [&](const Growth& one) { return one.state == write.state; });
    if (own == found.end()) own = found.insert(own, Growth{write.state, write.size, {}});
    own->length = write.size;
    own->reach.push_back(write.size);
  }
  return found;
}

}  // namespace

std::vector<MethodEntry> make_entries(const Program& program) {
  std::vector<MethodEntry> entries;
  for (size_t i = 0; i < program.methods.size(); ++i) {
    const Method& method = program.methods[i];
    MethodEntry entry;
    entry.id = static_cast<int>(i);
    entry.method = &method;
    for (const Advance& advance : method.advances) {
      if (advance.lengths >= 0 && entry.row_lengths < 0) {
        entry.cursor = advance.cursor;
        entry.row_lengths = advance.lengths;
      }
    }
    if (entry.row_lengths < 0 && !method.advances.empty()) {
      entry.cursor = method.advances[0].cursor;
    }
    entry.takes_tokens = takes_tokens(method, entry.row_lengths);
    entry.only_reads =
        method.advances.empty() && method.writes.empty() && method.cursor_values.empty();
    entry.restarts = method.role == "encode";
    if (!entry.restarts) find_encoder(program, &entry);
    for (const int state : method.writes) entry.writes.push_back(writes_of(program, method, state));
    entry.growth = growth_of(program, method);
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace kvc::lib
