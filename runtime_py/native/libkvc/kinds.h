// The kinds of states; see state_kind.h.
#pragma once

#include "state_kind.h"

namespace kvc::lib {

// States that calls may write anywhere. A failed call leaves them partly written, and a session
// with them goes back to its beginning at most, by a reset.
class Plain : public Kind {
 public:
  using Kind::Kind;
  bool is_risk(AccessMode) const override { return true; }
  void begin(const Begin& call, Undo* undo) override;
  std::string why_lost(const std::vector<bool>& counting) const override;
};

// Numbers that methods add to. They are copied before each call.
class Counter : public Kind {
 public:
  using Kind::Kind;
  bool is_risk(AccessMode) const override { return false; }
  void begin(const Begin& call, Undo* undo) override;
  std::string why_lost(const std::vector<bool>& counting) const override;
  void rewind(const Rows& starts, const Rows& ends, const Rows& firsts) override;
};

// Caches that are written from the position on; later slots hold their initial content.
class Linear : public Kind {
 public:
  using Kind::Kind;
  bool is_risk(AccessMode mode) const override { return mode != AccessMode::kSlots; }
  bool placed() const override { return true; }
  void begin(const Begin& call, Undo* undo) override;
  void undo(const Undo& undo) override;
  void rewind(const Rows& starts, const Rows& ends, const Rows& firsts) override;
  int64_t held() const override;
};

// Rings: slots before the window are used again. A row that has gone round goes back only as far
// as the window before it is still there.
class Ring : public Linear {
 public:
  Ring(const State& state, const StateLayout& layout, Store* store, int64_t* length,
       size_t most_rows);
  bool is_risk(AccessMode) const override { return false; }
  bool goes_round() const override { return true; }
  void begin(const Begin& call, Undo* undo) override;
  void undo(const Undo& undo) override;
  std::string why_gone(const Rows& starts, const Rows& counts, const Rows& firsts) const override;
  void most_rewindable(const Rows& starts, Rows* most) const override;
  void rewind(const Rows& starts, const Rows& ends, const Rows& firsts) override;

 private:
  bool is_anew(int64_t end, int64_t first) const;
};

// Growing states: all rows have one length.
class Append : public Kind {
 public:
  using Kind::Kind;
  bool is_risk(AccessMode mode) const override { return mode != AccessMode::kAppend; }
  bool grows() const override { return true; }
  void begin(const Begin& call, Undo* undo) override;
  void undo(const Undo& undo) override;
  bool lost(const StateWrites& writes, bool written, bool unplaced) const override;
  std::string why_lost(const std::vector<bool>& counting) const override;
  void rewind(const Rows& starts, const Rows& ends, const Rows& firsts) override;
  int64_t held() const override { return *length_; }

 private:
  bool matters(const StateWrites& writes) const;
  void cut(int64_t length, int64_t end);
};

}  // namespace kvc::lib
