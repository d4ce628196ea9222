#include "kinds.h"

namespace kvc::lib {

void Append::begin(const Begin& call, Undo* undo) {
  undo->how = Undo::How::kCut;
  undo->length = *length_;
  undo->reach = call.reach;
  undo->content.clear();
  undo->span = Span{0, 0, -1};
  if (call.keeps && matters(*call.writes)) {
    undo->span.high = *length_;
    store_->read(undo->span, &undo->content);
  }
}

void Append::undo(const Undo& undo) {
  if (undo.how != Undo::How::kCut) return;
  cut(undo.length, std::max(undo.reach, *length_));
  if (undo.span.high > 0) store_->write(undo.span, undo.content);
}

bool Append::lost(const StateWrites& writes, bool written, bool) const {
  return written && matters(writes);
}

std::string Append::why_lost(const std::vector<bool>&) const {
  return state.at_position() ? "" : "not every method writes it at the position";
}

void Append::rewind(const Rows&, const Rows& ends, const Rows&) {
  cut(std::min(*length_, ends[0]), *length_);
}

// Whether a write destroys content: one that replaces an empty state does not.
bool Append::matters(const StateWrites& writes) const {
  for (const Write& risk : writes.risks) {
    if (risk.mode != AccessMode::kReplace || *length_ > 0) return true;
  }
  return false;
}

void Append::cut(int64_t length, int64_t end) {
  *length_ = length;
  store_->fill(Span{length, end, -1});
}

}  // namespace kvc::lib
