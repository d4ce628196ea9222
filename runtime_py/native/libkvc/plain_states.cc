// Plain states, and counters.
#include <cstring>

#include "errors.h"
#include "kinds.h"

namespace kvc::lib {

std::unique_ptr<Kind> Kind::make(const State& state, const StateLayout& layout, Store* store,
                                 int64_t* length, size_t most_rows) {
  if (state.kind == StateKind::kCounter) {
    return std::make_unique<Counter>(state, layout, store, length, most_rows);
  }
  if (state.kind == StateKind::kLinear && state.at_position()) {
    return std::make_unique<Linear>(state, layout, store, length, most_rows);
  }
  if (state.kind == StateKind::kRing && state.has_window) {
    return std::make_unique<Ring>(state, layout, store, length, most_rows);
  }
  if (state.kind == StateKind::kAppend) {
    return std::make_unique<Append>(state, layout, store, length, most_rows);
  }
  return std::make_unique<Plain>(state, layout, store, length, most_rows);
}

void Plain::begin(const Begin& call, Undo* undo) {
  undo->how = call.keeps ? Undo::How::kContent : Undo::How::kNothing;
  undo->span = Span{};
  if (call.keeps) store_->read(undo->span, &undo->content);
}

std::string Plain::why_lost(const std::vector<bool>&) const {
  if (state.kind == StateKind::kLinear) return "not every method writes it at the position";
  const char* what = state.kind == StateKind::kRing ? "it is a ring without a window"
                                                    : "it is plain";
  return text_of("%s, and calls overwrite its old content", what);
}

void Counter::begin(const Begin&, Undo* undo) {
  undo->how = Undo::How::kContent;
  undo->span = Span{};
  store_->read(undo->span, &undo->content);
}

std::string Counter::why_lost(const std::vector<bool>& counting) const {
  for (size_t i = 0; i < counting.size(); ++i) {
    if (writers[i] != counting[i]) {
      return "not every method that advances it advances the position with it";
    }
  }
  return "";
}

void Counter::rewind(const Rows& starts, const Rows& ends, const Rows&) {
  std::vector<uint8_t> content;
  store_->read(Span{}, &content);
  const size_t count = content.size() / static_cast<size_t>(layout.itemsize);
  for (size_t i = 0; i < count; ++i) {
    const size_t row = starts.size() == count ? i : 0;
    const int64_t dropped = starts[row] - ends[row];
    uint8_t* at = content.data() + i * static_cast<size_t>(layout.itemsize);
    if (layout.itemsize == 4) {
      int32_t number;
      std::memcpy(&number, at, sizeof number);
      number = static_cast<int32_t>(number - dropped);
      std::memcpy(at, &number, sizeof number);
    } else {
      int64_t number;
      std::memcpy(&number, at, sizeof number);
      number -= dropped;
      std::memcpy(at, &number, sizeof number);
    }
  }
  store_->write(Span{}, content);
}

}  // namespace kvc::lib
