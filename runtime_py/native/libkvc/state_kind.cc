#include "state_kind.h"

#include "errors.h"

namespace kvc::lib {

Kind::Kind(const State& state, const StateLayout& layout, Store* store, int64_t* length,
           size_t most_rows)
    : state(state), layout(layout), store_(store), length_(length) {
  reached.reserve(most_rows);
  scratch_.reserve(most_rows);
}

void Kind::undo(const Undo& undo) {
  if (undo.how == Undo::How::kContent) store_->write(undo.span, undo.content);
}

bool Kind::lost(const StateWrites& writes, bool written, bool unplaced) const {
  return written && ((placed() && unplaced) || !writes.risks.empty());
}

std::string Kind::why_lost(const std::vector<bool>&) const { return ""; }

std::string Kind::why_gone(const Rows&, const Rows&, const Rows&) const { return ""; }

void Kind::rewind(const Rows&, const Rows&, const Rows&) {}

std::string Kind::why_beside(int cursor, const std::vector<bool>& counting,
                             const Rows& wanted) const {
  bool touched = false, whole = true;
  for (size_t i = 0; i < writers.size(); ++i) {
    touched = touched || (writers[i] && counting[i]);
    whole = whole && (writers[i] || !counting[i]);
  }
  if (!touched) return "";
  if (whole) {
    const std::string reason = why_lost(counting);
    return reason.empty() ? "it is at another cursor, which the same calls advance" : reason;
  }
  const Rows& last = ends[static_cast<size_t>(cursor)];
  int64_t most = 0;
  bool kept = true;
  for (size_t i = 0; i < last.size() && i < wanted.size(); ++i) {
    most = std::max(most, last[i]);
    kept = kept && wanted[i] >= last[i];
  }
  return kept ? "" : text_of("a call that wrote it up to position %lld would be undone",
                             static_cast<long long>(most));
}

void Kind::forget() {
  reached.clear();
  for (Rows& rows : ends) rows.clear();
}

void Kind::follow(const Kind& other) {
  reached = other.reached;
  ends = other.ends;
}

void Kind::reach(const Rows& starts, Rows* found) const {
  const bool alike = reached.size() == starts.size();
  int64_t most = 0;
  for (const int64_t one : reached) most = std::max(most, one);
  found->resize(starts.size());
  for (size_t i = 0; i < starts.size(); ++i) {
    (*found)[i] = std::max(alike ? reached[i] : most, starts[i]);
  }
}

}  // namespace kvc::lib
