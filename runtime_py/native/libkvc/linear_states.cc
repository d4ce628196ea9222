// Linear caches, and rings.
#include "errors.h"
#include "kinds.h"

namespace kvc::lib {
namespace {

// The slot after the last that a call writes in each row.
void find_ends(const Begin& call, Rows* ends) {
  const Rows& starts = *call.starts;
  ends->resize(starts.size());
  for (size_t i = 0; i < starts.size(); ++i) {
    const bool own = call.row_lengths != nullptr && call.extent != kAllSlots;
    (*ends)[i] = starts[i] + (own ? (*call.row_lengths)[i] : call.extent);
  }
}

}  // namespace

void Linear::begin(const Begin& call, Undo* undo) {
  const bool at_cursor = call.starts != nullptr && call.writes->risks.empty();
  undo->how = Undo::How::kNothing;
  if (call.keeps && !at_cursor) {
    undo->how = Undo::How::kContent;
    undo->span = Span{};
    store_->read(undo->span, &undo->content);
  }
  if (call.starts == nullptr) {
    reached.assign(1, kAllSlots);
    return;
  }
  find_ends(call, &scratch_);
  reach(scratch_, &undo->reached);
  undo->starts = *call.starts;
  if (!(at_cursor && call.extent == kAllSlots)) reached = undo->reached;
  if (undo->how == Undo::How::kNothing) undo->how = Undo::How::kRewind;
}

void Linear::undo(const Undo& undo) {
  if (undo.how != Undo::How::kRewind) return Kind::undo(undo);
  Rows now;
  reach(undo.reached, &now);  // later pieces of the same prefill may have written further
  reached = now;
  Linear::rewind(undo.starts, undo.starts, undo.starts);
}

void Linear::rewind(const Rows& starts, const Rows& ends, const Rows&) {
  Rows highs;
  reach(starts, &highs);
  by_row(ends, highs, [&](const Span& span) { store_->fill(span); });
  reached = ends;
}

int64_t Linear::held() const {
  return reached.empty() ? 0 : *std::max_element(reached.begin(), reached.end());
}

Ring::Ring(const State& state, const StateLayout& layout, Store* store, int64_t* length,
           size_t most_rows)
    : Linear(state, layout, store, length, most_rows) {
  longest = layout.slots - state.window_keep - state.window_size + 1;
}

void Ring::begin(const Begin& call, Undo* undo) {
  const bool goes_round = call.starts != nullptr && call.extent > longest;
  if (!call.several && !goes_round) return Linear::begin(call, undo);
  const Span held{0, this->held(), -1};
  const Rows old = reached;
  std::vector<uint8_t> content;
  store_->read(held, &content);
  Linear::begin(call, undo);
  undo->how = Undo::How::kRing;
  undo->span = held;
  undo->content = std::move(content);
  undo->reached = old;
}

void Ring::undo(const Undo& undo) {
  if (undo.how == Undo::How::kRing) {
    store_->fill(Span{undo.span.high, kAllSlots, -1});
    store_->write(undo.span, undo.content);
    reached = undo.reached;
  } else if (undo.how == Undo::How::kRewind) {
    Rows now;
    reach(undo.reached, &now);
    reached = now;
    Ring::rewind(undo.starts, undo.starts, undo.starts);
  } else {
    Kind::undo(undo);
  }
}

std::string Ring::why_gone(const Rows& starts, const Rows& counts, const Rows& firsts) const {
  Rows most;
  most_rewindable(starts, &most);
  for (size_t i = 0; i < starts.size(); ++i) {
    if (counts[i] <= most[i] || is_anew(starts[i] - counts[i], firsts[i])) continue;
    return text_of("its %lld slots have room for %lld tokens after a window of %lld, and the "
                   "window before the last %lld of row %zu has been overwritten: %lld cannot be "
                   "forgotten",
                   static_cast<long long>(layout.slots), static_cast<long long>(longest - 1),
                   static_cast<long long>(state.window_size), static_cast<long long>(most[i]), i,
                   static_cast<long long>(counts[i]));
  }
  return "";
}

void Ring::most_rewindable(const Rows& starts, Rows* most) const {
  reach(starts, most);
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t far = (*most)[i];
    const bool round = far > layout.slots;
    (*most)[i] = round ? std::max<int64_t>(longest - (far - starts[i]), 0) : starts[i];
  }
}

void Ring::rewind(const Rows& starts, const Rows& ends, const Rows& firsts) {
  Rows lows, highs, far;
  reach(starts, &far);
  for (size_t i = 0; i < starts.size(); ++i) {
    const bool anew = starts[i] > ends[i] && is_anew(ends[i], firsts[i]);
    const bool round = far[i] > layout.slots;  // such a row keeps all slots, or none
    lows.push_back(round ? std::min(ends[i], state.window_keep) : ends[i]);
    highs.push_back(round ? (anew ? layout.slots : 0) : far[i]);
    far[i] = round && !anew ? far[i] : ends[i];
  }
  by_row(lows, highs, [&](const Span& span) { store_->fill(span); });
  reached = far;
}

bool Ring::is_anew(int64_t end, int64_t first) const {
  return end == first || end == std::min(end, state.window_keep);
}

}  // namespace kvc::lib
