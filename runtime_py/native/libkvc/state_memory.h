// The states of one session: their memory, kinds, lengths and positions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "state_kind.h"
#include "system.h"

namespace kvc::lib {

class Bundle;

class StateMemory {
 public:
  // Reserves memory that holds the initial values. `sizes` has those that the session fixes.
  StateMemory(Bundle& bundle, const Sizes& sizes, int64_t capacity);
  ~StateMemory();
  StateMemory(const StateMemory&) = delete;
  StateMemory& operator=(const StateMemory&) = delete;

  const Program& program() const { return program_; }
  const Sizes& sizes() const { return sizes_; }
  int64_t capacity() const { return capacity_; }  // -1 for no limit
  const StateLayout& layout(int state) const { return layouts_[static_cast<size_t>(state)]; }
  Kind& kind(int state) const { return *kinds_[static_cast<size_t>(state)]; }
  size_t count() const { return kinds_.size(); }
  uint8_t* base(int state) const;
  // The position of each row at a cursor; false if it is unknown.
  bool known_position(int cursor, Rows* found) const;
  // As `known_position`; fails if it is unknown.
  void position(int cursor, Rows* found) const;
  // The values of the position's counter in a new session, 0 without a counter.
  void first_position(Rows* found) const;
  // How many tokens a row can hold at a cursor, -1 for no limit.
  int64_t room(int cursor) const;
  // Fails if a row has too little room for `steps` more tokens.
  void check_room(int cursor, const Rows& starts, const Rows& steps) const;
  void check_usable() const;
  void reset();
  // Makes this memory the same as other memory of equal sizes.
  void follow(const StateMemory& other);

  const uint64_t id;             // of no other memory of the process
  std::vector<int64_t> lengths;  // of growing states
  std::vector<Rows> counted;     // of each cursor, the positions that the session counts
  std::string poisoned;          // what left states partly written, or ""
  bool limited = false;          // by a ring
  std::vector<Rows> pending;     // tokens of each row that are to run next
  std::string attached;          // a JSON object of the file that was restored, or ""

 private:
  class StateStore;

  void lay_out();
  void begin(int state);  // writes an initial value

  Bundle& bundle_;
  const Program& program_;
  Sizes sizes_;
  int64_t capacity_;
  std::vector<StateLayout> layouts_;
  Reserved arenas_[2];  // of states that a reset clears, and that it keeps
  std::vector<std::unique_ptr<StateStore>> stores_;
  std::vector<std::unique_ptr<Kind>> kinds_;
};

// Sizes, capacity and rows of sessions (session_sizes.cc).

// The size of each symbol of states: what is wanted, rounded up to a bucket, or its default.
// Fails as KVC_UNKNOWN_NAME or KVC_BAD_ARGUMENT. `capacity` is -1 where none is wanted.
Sizes choose_sizes(const Program& program, const Sizes& wanted, int64_t capacity);
// How many tokens a row can hold, -1 for no limit.
int64_t choose_capacity(const Program& program, const Sizes& sizes, int64_t capacity);
// The symbol that limits positions, or -1.
int capacity_symbol(const Program& program);
size_t count_rows(const Program& program, const Sizes& sizes, int cursor);
// Whether axis 0 of a state has a row for each row of its cursor.
bool has_rows(const Program& program, const State& state);
// Whether a method takes one position of a cursor for all rows.
bool takes_one_position(const Program& program, const Method& method, int cursor);

}  // namespace kvc::lib
