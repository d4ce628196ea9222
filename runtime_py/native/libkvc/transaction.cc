// What a call changes in its session, and how a failed one is undone:
// `runtime_py/calls/transactions.py` in C++.
#include <algorithm>

#include "calls.h"
#include "errors.h"

namespace kvc::lib {

Transaction::Transaction(StateMemory& memory) : memory_(memory) {
  const size_t cursors = memory.counted.size();
  known_.assign(cursors, false);
  moved_.assign(cursors, false);
  loose_.assign(cursors, false);
  starts_.resize(cursors);
  steps_.resize(cursors);
  ends_.resize(cursors);
}

void Transaction::begin(const MethodEntry& entry, const Sizes& sizes, const Rows* row_lengths) {
  entry_ = &entry;
  const Program& program = memory_.program();
  const Method& method = *entry.method;
  for (size_t i = 0; i < starts_.size(); ++i) {
    const int number = static_cast<int>(i);
    known_[i] = memory_.known_position(number, &starts_[i]);
    const Advance* advance = method.advance_of(number);
    moved_[i] = advance != nullptr;
    loose_[i] = moved_[i] && !advance->tokens;
    const bool own = row_lengths != nullptr && number == entry.cursor;
    if (own && known_[i] && row_lengths->size() != starts_[i].size()) {
      fail(KVC_STATE_MISMATCH, "method %s: expected row lengths of %zu rows, found %zu",
           shown(method.name).c_str(), starts_[i].size(), row_lengths->size());
    }
    const bool counted = moved_[i] && advance->tokens;
    const int64_t tokens = counted ? program.evaluate(*advance->tokens, sizes) : 0;
    if (tokens < 0) {
      fail(KVC_DAMAGED, "method %s adds fewer tokens than none", shown(method.name).c_str());
    }
    if (own) {
      steps_[i] = *row_lengths;
    } else {
      steps_[i].assign(known_[i] ? starts_[i].size() : 1, tokens);
    }
    if (known_[i] && moved_[i] && !loose_[i]) memory_.check_room(number, starts_[i], steps_[i]);
  }
  counted_ = memory_.counted;
  for (const StateWrites& writes : entry.writes) {
    const Rows& steps = steps_[static_cast<size_t>(writes.cursor)];
    const int64_t most = steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end());
    const Kind& kind = memory_.kind(writes.state);
    if (most <= kind.longest || writes.piecewise) continue;
    fail(KVC_CALL_TOO_LONG,
         "method %s: %lld tokens are too many for one call: the ring %s of %lld slots takes %lld; "
         "make several calls",
         shown(method.name).c_str(), static_cast<long long>(most), shown(kind.state.name).c_str(),
         static_cast<long long>(kind.layout.slots), static_cast<long long>(kind.longest));
  }
  if (undo_.size() < entry.writes.size()) undo_.resize(entry.writes.size());
  for (size_t i = 0; i < entry.writes.size(); ++i) {
    const StateWrites& writes = entry.writes[i];
    const auto cursor = static_cast<size_t>(writes.cursor);
    Begin call{&writes, 0, known_[cursor] ? &starts_[cursor] : nullptr, nullptr};
    if (writes.any && !writes.slots) call.extent = kAllSlots;
    if (writes.any && writes.slots) {
      call.extent = program.evaluate(*method.advance_of(writes.cursor)->tokens, sizes);
    }
    if (writes.cursor == entry.cursor) call.row_lengths = row_lengths;
    for (const Growth& growth : entry.growth) {
      if (growth.state != writes.state) continue;
      for (const Dim& dim : growth.reach) {
        call.reach = std::max(call.reach, program.evaluate(dim, sizes));
      }
    }
    memory_.kind(writes.state).begin(call, &undo_[i]);
  }
  memory_.poisoned = method.name;  // until the call has succeeded or been undone
}

void Transaction::fill(std::vector<CursorMemory>& cursors, const std::string& method) const {
  for (CursorMemory& one : cursors) {
    const auto number = static_cast<size_t>(one.cursor);
    const Rows& steps = steps_[number];
    const Rows& starts = starts_[number];
    const auto position = [&](size_t row) { return known_[number] ? starts[row] : 0; };
    const size_t rows = known_[number] ? starts.size() : 1;
    const auto value = [&](size_t row) {
      const int64_t length = row < steps.size() ? steps[row] : 0;
      if (one.field == CursorField::kLengths) return length;
      return position(row) + (one.field == CursorField::kEnd ? length : 0);
    };
    const bool places = one.field == CursorField::kPlaces;
    if (!places && one.count == static_cast<int64_t>(rows)) {
      for (size_t row = 0; row < rows; ++row) one.at[row] = value(row);
      continue;
    }
    for (size_t row = 1; row < rows; ++row) {
      if (value(row) == value(0)) continue;
      fail(KVC_STATE_MISMATCH,
           "method %s takes one position for all rows; row 0 is at %lld, row %zu at %lld",
           shown(method).c_str(), static_cast<long long>(value(0)), row,
           static_cast<long long>(value(row)));
    }
    const int64_t first = rows > 0 ? value(0) : 0;
    for (int64_t i = 0; i < one.count; ++i) one.at[i] = first + (places ? i : 0);
  }
}

void Transaction::commit(const Sizes& sizes) {
  const Program& program = memory_.program();
  for (size_t i = 0; i < starts_.size(); ++i) {
    if (!moved_[i] || !known_[i]) continue;
    const int number = static_cast<int>(i);
    ends_[i] = starts_[i];
    if (loose_[i]) {
      memory_.position(number, &ends_[i]);
      added_ = ends_[i];
      for (size_t row = 0; row < added_.size() && row < starts_[i].size(); ++row) {
        added_[row] -= starts_[i][row];
      }
      memory_.check_room(number, starts_[i], added_);
      continue;
    }
    for (size_t row = 0; row < ends_[i].size(); ++row) ends_[i][row] += steps_[i][row];
  }
  for (size_t i = 0; i < program.cursors.size(); ++i) {
    if (program.cursors[i].kind != CursorKind::kSession) continue;
    Rows& rows = memory_.counted[i];
    for (size_t row = 0; row < rows.size(); ++row) rows[row] += steps_[i][row];
  }
  note_ends();
  for (const Growth& growth : entry_->growth) {
    memory_.lengths[static_cast<size_t>(growth.state)] = program.evaluate(growth.length, sizes);
  }
  memory_.poisoned.clear();
}

// Tells kinds the positions that they do not find out themselves: of cursors that are not theirs,
// and of their own where a loop has moved it.
void Transaction::note_ends() {
  for (const StateWrites& writes : entry_->writes) {
    Kind& kind = memory_.kind(writes.state);
    const auto own = static_cast<size_t>(writes.cursor);
    if (kind.placed() && loose_[own] && known_[own]) kind.reach(Rows(ends_[own]), &kind.reached);
    if (writes.placed && starts_.size() == 1) continue;
    for (size_t i = 0; i < starts_.size(); ++i) {
      const bool ended = moved_[i] && known_[i];
      if (ended && static_cast<int>(i) != kind.state.cursor) kind.ends[i] = ends_[i];
    }
  }
}

void Transaction::roll_back(BoundCall* call, int32_t count) {
  memory_.counted = counted_;
  std::vector<bool> written;  // before the undo, which compares with what is there
  for (const StateWrites& writes : entry_->writes) {
    const Kind& kind = memory_.kind(writes.state);
    const bool matters = !writes.risks.empty() || kind.placed();
    written.push_back(matters && call != nullptr && call->is_written(count, writes.state));
  }
  bool lost = false;
  for (size_t i = 0; i < entry_->writes.size(); ++i) {
    const StateWrites& writes = entry_->writes[i];
    Kind& kind = memory_.kind(writes.state);
    kind.undo(undo_[i]);
    lost = lost || kind.lost(writes, written[i], !known_[static_cast<size_t>(writes.cursor)]);
  }
  if (!lost) memory_.poisoned.clear();
}

}  // namespace kvc::lib
