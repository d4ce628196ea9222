#include "rewinding.h"

#include <algorithm>

#include "errors.h"

namespace kvc::lib {
namespace {

constexpr int kCursor = 0;  // that counts the tokens of prefill and decode

// The methods that advance the position.
std::vector<bool> counting_methods(const Program& program) {
  std::vector<bool> found;
  for (const Method& method : program.methods) {
    found.push_back(method.advance_of(kCursor) != nullptr);
  }
  return found;
}

bool is_written(const Kind& kind) {
  return std::find(kind.writers.begin(), kind.writers.end(), true) != kind.writers.end();
}

[[noreturn]] void refuse(const Kind& kind, const std::string& reason) {
  fail(KVC_NOT_REWINDABLE, "the state %s cannot go back: %s; reset the session, or restore a saved "
       "one", shown(kind.state.name).c_str(), reason.c_str());
}

bool writes_all(const Kind& kind, const std::vector<bool>& counting) {
  for (size_t i = 0; i < counting.size(); ++i) {
    if (counting[i] && !kind.writers[i]) return false;
  }
  return true;
}

// Checks that states can go back at all; finds the positions now, and in a new session.
void check_goes_back(StateMemory& memory, Rows* starts, Rows* firsts) {
  memory.check_usable();
  memory.position(kCursor, starts);
  const std::vector<bool> counting = counting_methods(memory.program());
  for (size_t i = 0; i < memory.count(); ++i) {
    const Kind& kind = memory.kind(static_cast<int>(i));
    if (!is_written(kind)) continue;
    if (kind.state.cursor != kCursor && !writes_all(kind, counting)) continue;
    const std::string reason = kind.why_lost(counting);
    if (!reason.empty()) refuse(kind, reason);
  }
  memory.first_position(firsts);
}

// Checks that rows may go back by different numbers of tokens.
void check_rows(const StateMemory& memory, const std::vector<Kind*>& kinds) {
  const Program& program = memory.program();
  for (const Method& method : program.methods) {
    if (!takes_one_position(program, method, kCursor)) continue;
    fail(KVC_NOT_REWINDABLE, "rows cannot go back by different numbers of tokens: method %s takes "
         "one position for all rows", shown(method.name).c_str());
  }
  for (const Kind* kind : kinds) {
    if (kind->layout.has_rows && !kind->grows()) continue;
    fail(KVC_NOT_REWINDABLE, "rows cannot go back by different numbers of tokens: all rows of the "
         "state %s go together", shown(kind->state.name).c_str());
  }
}

}  // namespace

void rewind(StateMemory& memory, const Rows& given) {
  Rows starts, firsts;
  check_goes_back(memory, &starts, &firsts);
  if (given.size() != 1 && given.size() != starts.size()) {
    fail(KVC_BAD_ARGUMENT, "expected one count, or one for each of %zu rows; found %zu",
         starts.size(), given.size());
  }
  Rows counts = given, ends = starts;
  counts.resize(starts.size(), given[0]);
  bool any = false, alike = true;
  for (size_t row = 0; row < starts.size(); ++row) {
    const int64_t most = starts[row] - firsts[row];
    if (counts[row] < 0 || counts[row] > most) {
      fail(KVC_BAD_ARGUMENT, "expected 0..%lld, the tokens of row %zu; found %lld",
           static_cast<long long>(most), row, static_cast<long long>(counts[row]));
    }
    ends[row] -= counts[row];
    any = any || counts[row] > 0;
    alike = alike && counts[row] == counts[0];
  }
  std::vector<Kind*> own;
  const std::vector<bool> counting = counting_methods(memory.program());
  for (size_t i = 0; i < memory.count(); ++i) {
    Kind& kind = memory.kind(static_cast<int>(i));
    if (is_written(kind) && kind.state.cursor == kCursor) own.push_back(&kind);
  }
  if (!alike) check_rows(memory, own);
  for (const Kind* kind : own) {
    const std::string reason = kind->why_gone(starts, counts, firsts);
    if (!reason.empty()) refuse(*kind, reason);
  }
  if (!any) return;
  for (size_t i = 0; i < memory.count(); ++i) {
    const Kind& kind = memory.kind(static_cast<int>(i));
    if (!is_written(kind) || kind.state.cursor == kCursor) continue;
    const std::string reason = kind.why_beside(kCursor, counting, ends);
    if (!reason.empty()) refuse(kind, reason);
  }
  for (Kind* kind : own) kind->rewind(starts, ends, firsts);
  if (memory.program().cursors[kCursor].kind == CursorKind::kSession) memory.counted[0] = ends;
  memory.pending.clear();
}

Rows most_rewindable(StateMemory& memory) {
  Rows starts, firsts, most;
  check_goes_back(memory, &starts, &firsts);
  for (size_t row = 0; row < starts.size(); ++row) most.push_back(starts[row] - firsts[row]);
  const std::vector<bool> counting = counting_methods(memory.program());
  for (size_t i = 0; i < memory.count(); ++i) {
    const Kind& kind = memory.kind(static_cast<int>(i));
    Rows limit;
    if (kind.state.cursor == kCursor) {
      kind.most_rewindable(starts, &limit);
    } else {
      bool touched = false;
      for (size_t j = 0; j < counting.size(); ++j) {
        touched = touched || (counting[j] && kind.writers[j]);
      }
      if (!touched) continue;
      const Rows& noted = kind.ends[kCursor];
      for (size_t row = 0; row < starts.size(); ++row) {
        const int64_t last = row < noted.size() ? noted[row] : firsts[row];
        limit.push_back(std::max<int64_t>(starts[row] - last, 0));
      }
    }
    for (size_t row = 0; row < most.size(); ++row) most[row] = std::min(most[row], limit[row]);
  }
  return most;
}

}  // namespace kvc::lib
