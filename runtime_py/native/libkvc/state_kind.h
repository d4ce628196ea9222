// The interface of a kind of state: what a call may write, how it is undone, how far a session
// can go back. `runtime_py/states/kind.py` is the same in Python; here each state has an object.
#pragma once

#include <memory>
#include <vector>

#include "state_layout.h"

namespace kvc::lib {

using Rows = std::vector<int64_t>;  // a number for each row

// The memory of one state.
class Store {
 public:
  virtual ~Store() = default;
  virtual void read(const Span& span, std::vector<uint8_t>* content) const = 0;
  virtual void write(const Span& span, const std::vector<uint8_t>& content) = 0;
  // Restores the initial content.
  virtual void fill(const Span& span) = 0;
};

// What a method writes into a state.
struct StateWrites {
  int state = 0;
  int cursor = 0;        // of the state, 0 if it has none
  bool placed = false;   // it has one
  bool piecewise = false;  // each write is of a turn of a loop, not of all tokens
  bool any = false;      // it writes at all
  bool slots = true;     // each write is of slots, as many as the call has tokens
  std::vector<Write> risks;  // writes that cannot be undone without a copy
};

// A call, as a state is told before it.
struct Begin {
  const StateWrites* writes;
  int64_t extent;             // slots from the position on
  const Rows* starts;         // positions; null: unknown
  const Rows* row_lengths;    // null: each row has all tokens
  bool several = false;       // of all calls that a call is cut into
  bool keeps = false;         // to copy what cannot be restored otherwise
  int64_t reach = 0;          // the greatest length of a growing state meanwhile
};

// What restores a state. It is used again for the next call, so that a call takes no memory.
struct Undo {
  enum class How { kNothing, kContent, kRewind, kCut, kRing };
  How how = How::kNothing;
  Span span;
  std::vector<uint8_t> content;
  Rows reached, starts;
  int64_t length = 0, reach = 0;
};

class Kind {
 public:
  Kind(const State& state, const StateLayout& layout, Store* store, int64_t* length,
       size_t most_rows);
  virtual ~Kind() = default;
  static std::unique_ptr<Kind> make(const State& state, const StateLayout& layout, Store* store,
                                    int64_t* length, size_t most_rows);

  const State& state;
  const StateLayout& layout;
  Rows reached;  // of each row the end of the slots that calls have written, if `placed`
  std::vector<Rows> ends;  // of other cursors, the positions after the last call that wrote it
  std::vector<bool> writers;  // methods that write it
  int64_t longest = kAllSlots;  // tokens that a call can add

  // Whether a write cannot be undone without a copy.
  virtual bool is_risk(AccessMode mode) const = 0;
  virtual bool placed() const { return false; }
  virtual bool grows() const { return false; }
  virtual bool goes_round() const { return false; }

  virtual void begin(const Begin& call, Undo* undo) = 0;
  virtual void undo(const Undo& undo);
  // Whether a failed call leaves the state partly written; `written` tells whether it may have
  // written it.
  virtual bool lost(const StateWrites& writes, bool written, bool unplaced) const;

  // Why a rewind cannot undo calls, "" if it can. `counting` are the methods that advance the
  // position.
  virtual std::string why_lost(const std::vector<bool>& counting) const;
  // Why rows cannot be rewound by `counts`.
  virtual std::string why_gone(const Rows& starts, const Rows& counts, const Rows& firsts) const;
  virtual void most_rewindable(const Rows& starts, Rows* most) const { *most = starts; }
  virtual void rewind(const Rows& starts, const Rows& ends, const Rows& firsts);
  // Why a rewind at another cursor is not possible.
  std::string why_beside(int cursor, const std::vector<bool>& counting, const Rows& ends) const;

  // How many first slots a copy needs.
  virtual int64_t held() const { return kAllSlots; }
  void forget();
  void follow(const Kind& other);
  void reach(const Rows& starts, Rows* found) const;

 protected:
  // Calls function(span) for the slots of each row; once for all if they are the same.
  template <class F>
  void by_row(const Rows& lows, const Rows& highs, const F& function) const {
    bool alike = true;
    for (size_t i = 1; i < lows.size(); ++i) {
      alike = alike && lows[i] == lows[0] && highs[i] == highs[0];
    }
    if (alike || !layout.has_rows) {
      const int64_t low = lows.empty() ? 0 : *std::max_element(lows.begin(), lows.end());
      const int64_t high = highs.empty() ? 0 : *std::max_element(highs.begin(), highs.end());
      function(Span{low, high, -1});
      return;
    }
    for (size_t i = 0; i < lows.size(); ++i) {
      function(Span{lows[i], highs[i], static_cast<int64_t>(i)});
    }
  }

  Store* store_;
  int64_t* length_;
  mutable Rows scratch_;
};

}  // namespace kvc::lib
