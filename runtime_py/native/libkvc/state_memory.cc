#include "state_memory.h"

#include <atomic>
#include <cstring>

#include "bundle.h"
#include "errors.h"

namespace kvc::lib {
namespace {

constexpr int64_t kFar = int64_t{1} << 62;  // of counters, so that sums do not overflow
constexpr int64_t kMostState = int64_t{1} << 40;
constexpr int64_t kSpare = 4096;

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

// The memory of a state in the arenas of its session.
class StateMemory::StateStore : public Store {
 public:
  StateStore(StateMemory& memory, int state) : memory_(memory), state_(state) {}

  void read(const Span& span, std::vector<uint8_t>* content) const override {
    const StateLayout& layout = memory_.layout(state_);
    const uint8_t* base = memory_.base(state_);
    content->resize(static_cast<size_t>(layout.count(span) * layout.itemsize));
    uint8_t* to = content->data();
    layout.for_runs(span, [&](int64_t offset, int64_t nbytes) {
      std::memcpy(to, base + offset, static_cast<size_t>(nbytes));
      to += nbytes;
    });
  }

  void write(const Span& span, const std::vector<uint8_t>& content) override {
    uint8_t* base = memory_.base(state_);
    const uint8_t* from = content.data();
    memory_.layout(state_).for_runs(span, [&](int64_t offset, int64_t nbytes) {
      std::memcpy(base + offset, from, static_cast<size_t>(nbytes));
      from += nbytes;
    });
  }

  void fill(const Span& span) override {
    const StateLayout& layout = memory_.layout(state_);
    const int initial = memory_.program_.states[static_cast<size_t>(state_)].initial;
    if (initial >= 0) {
      const uint8_t* from = memory_.bundle_.constant(initial);
      uint8_t* base = memory_.base(state_);
      layout.for_rows(span, [&](int64_t offset, int64_t dense, int64_t nbytes) {
        std::memcpy(base + offset, from + dense, static_cast<size_t>(nbytes));
      });
      return;
    }
    Reserved& arena = memory_.arenas_[layout.kept];
    layout.for_runs(span, [&](int64_t offset, int64_t nbytes) {
      arena.clear(static_cast<size_t>(layout.offset + offset), static_cast<size_t>(nbytes));
    });
  }

 private:
  StateMemory& memory_;
  int state_;
};

StateMemory::StateMemory(Bundle& bundle, const Sizes& sizes, int64_t capacity)
    : id(next_id()), bundle_(bundle), program_(bundle.program()), sizes_(sizes),
      capacity_(capacity) {
  lay_out();
  const size_t count = program_.states.size();
  size_t most_rows = 1;
  for (size_t i = 0; i < std::max<size_t>(1, program_.cursors.size()); ++i) {
    counted.emplace_back(count_rows(program_, sizes_, static_cast<int>(i)), 0);
    most_rows = std::max(most_rows, counted.back().size());
  }
  lengths.assign(count, 0);
  for (size_t i = 0; i < count; ++i) {
    const State& state = program_.states[i];
    stores_.push_back(std::make_unique<StateStore>(*this, static_cast<int>(i)));
    kinds_.push_back(Kind::make(state, layouts_[i], stores_[i].get(), &lengths[i], most_rows));
    Kind& kind = *kinds_[i];
    limited = limited || kind.longest < kAllSlots;
    kind.ends.resize(counted.size());
    for (Rows& rows : kind.ends) rows.reserve(most_rows);
    for (const Method& method : program_.methods) {
      const auto& writes = method.writes;
      const bool own = std::find(writes.begin(), writes.end(), static_cast<int>(i)) != writes.end();
      kind.writers.push_back(own);
    }
    begin(static_cast<int>(i));
  }
}

StateMemory::~StateMemory() = default;

void StateMemory::lay_out() {
  int64_t ends[2] = {0, 0};
  for (const State& state : program_.states) {
    StateLayout made;
    made.rank = static_cast<int>(state.type.dims.size());
    made.axis = state.axis;
    made.itemsize = dtype_nbytes(state.type.dtype);
    made.nbytes = made.itemsize;
    for (int i = 0; i < made.rank; ++i) {
      made.dims[i] = program_.evaluate(state.type.dims[static_cast<size_t>(i)], sizes_);
      made.order[i] = state.layout[static_cast<size_t>(i)];
      const bool fits = made.dims[i] >= 0 && multiply(made.nbytes, made.dims[i], &made.nbytes);
      if (!fits || made.nbytes > kMostState) {
        fail(KVC_OUT_OF_MEMORY, "the state %s is too large", shown(state.name).c_str());
      }
    }
    int64_t step = 1;
    for (int i = made.rank - 1; i >= 0; --i) {
      made.strides[made.order[i]] = step;
      step *= made.dims[made.order[i]];
    }
    made.slots = made.axis < 0 ? 0 : made.dims[made.axis];
    made.has_rows = has_rows(program_, state);
    made.kept = state.kept;
    int64_t& end = ends[made.kept];
    made.offset = end;
    end += (made.nbytes + kSpare + 63) / 64 * 64;
    layouts_.push_back(made);
  }
  for (int i = 0; i < 2; ++i) {
    arenas_[i] = Reserved(static_cast<size_t>(ends[i]), "the states of a session");
  }
}

uint8_t* StateMemory::base(int state) const {
  const StateLayout& layout = layouts_[static_cast<size_t>(state)];
  return arenas_[layout.kept].bytes() + layout.offset;
}

void StateMemory::begin(int state) {
  if (program_.states[static_cast<size_t>(state)].initial >= 0) {
    stores_[static_cast<size_t>(state)]->fill(Span{});
  }
}

bool StateMemory::known_position(int number, Rows* found) const {
  if (static_cast<size_t>(number) >= program_.cursors.size()) return false;
  const Cursor& cursor = program_.cursors[static_cast<size_t>(number)];
  const Rows& rows = counted[static_cast<size_t>(number)];
  if (cursor.kind == CursorKind::kSession) {
    *found = rows;
    return true;
  }
  if (cursor.kind == CursorKind::kState) {
    const StateLayout& counter = layout(cursor.state);
    const uint8_t* at = base(cursor.state);
    found->resize(static_cast<size_t>(counter.nbytes / counter.itemsize));
    for (int64_t& count : *found) {
      int32_t small;
      std::memcpy(counter.itemsize == 4 ? static_cast<void*>(&small) : &count, at,
                  static_cast<size_t>(counter.itemsize));
      if (counter.itemsize == 4) count = small;
      at += counter.itemsize;
      if (count <= -kFar || count >= kFar) {
        fail(KVC_STATE_MISMATCH, "the state %s counts positions: expected numbers from -2^62 to "
             "2^62, found %lld",
             shown(program_.states[static_cast<size_t>(cursor.state)].name).c_str(),
             static_cast<long long>(count));
      }
    }
    return true;
  }
  int64_t length = 0;
  for (const bool own : {true, false}) {
    bool any = false;
    for (size_t i = 0; i < kinds_.size(); ++i) {
      const int at = program_.states[i].cursor;
      if (!kinds_[i]->grows() || at != (own ? number : -1)) continue;
      if (any && lengths[i] != length) return false;
      length = lengths[i];
      any = true;
    }
    if (any) break;
  }
  found->assign(rows.size(), length);
  return true;
}

void StateMemory::position(int cursor, Rows* found) const {
  if (known_position(cursor, found)) return;
  if (program_.cursors.empty()) {
    fail(KVC_NO_POSITION, "no state of this program counts tokens");
  }
  if (static_cast<size_t>(cursor) >= program_.cursors.size()) {
    fail(KVC_BAD_ARGUMENT, "the program has %zu cursors, there is no cursor %d",
         program_.cursors.size(), cursor);
  }
  fail(KVC_NO_POSITION, "growing states have different lengths, so there is no position");
}

void StateMemory::first_position(Rows* found) const {
  position(0, found);
  const int state = program_.cursors[0].state;
  const int initial = state < 0 ? -1 : program_.states[static_cast<size_t>(state)].initial;
  if (initial < 0) {
    std::fill(found->begin(), found->end(), 0);
    return;
  }
  const uint8_t* at = bundle_.constant(initial);
  const int64_t itemsize = layout(state).itemsize;
  for (int64_t& count : *found) {
    int32_t small = 0;
    if (itemsize == 4) {
      std::memcpy(&small, at, 4);
      count = small;
    } else {
      std::memcpy(&count, at, 8);
    }
    at += itemsize;
  }
}

int64_t StateMemory::room(int cursor) const {
  if (cursor == 0) return capacity_;
  const auto& capacity = program_.cursors[static_cast<size_t>(cursor)].capacity;
  return capacity ? program_.evaluate(*capacity, sizes_) : -1;
}

void StateMemory::check_room(int cursor, const Rows& starts, const Rows& steps) const {
  const int64_t limit = room(cursor);
  if (limit < 0) return;
  for (size_t i = 0; i < starts.size() && i < steps.size(); ++i) {
    if (steps[i] <= limit && starts[i] <= limit - steps[i]) continue;
    fail(KVC_CACHE_OVERFLOW,
         "the cache is full: row %zu holds %lld tokens, %lld more do not fit into %lld; open a "
         "session of more capacity, rewind or reset",
         i, static_cast<long long>(starts[i]), static_cast<long long>(steps[i]),
         static_cast<long long>(limit));
  }
}

void StateMemory::check_usable() const {
  if (poisoned.empty()) return;
  fail(KVC_POISONED, "a failed call of %s left states partly written; reset the session",
       shown(poisoned).c_str());
}

void StateMemory::reset() {
  const bool all = !poisoned.empty();
  poisoned = "reset";
  pending.clear();
  for (const bool kept : {false, true}) {
    if (kept && !all) continue;
    arenas_[kept].clear(0, arenas_[kept].nbytes());
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (layouts_[i].kept != kept) continue;
      begin(static_cast<int>(i));
      kinds_[i]->forget();
      lengths[i] = 0;
    }
  }
  for (Rows& rows : counted) std::fill(rows.begin(), rows.end(), 0);
  poisoned.clear();
}

void StateMemory::follow(const StateMemory& other) {
  std::vector<uint8_t> content;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const Span held{0, other.kinds_[i]->held(), -1};
    const uint8_t* from = other.base(static_cast<int>(i));
    uint8_t* to = base(static_cast<int>(i));
    layouts_[i].for_runs(held, [&](int64_t offset, int64_t nbytes) {
      std::memcpy(to + offset, from + offset, static_cast<size_t>(nbytes));
    });
    kinds_[i]->follow(*other.kinds_[i]);
  }
  lengths = other.lengths;
  counted = other.counted;
  pending = other.pending;
}

}  // namespace kvc::lib
