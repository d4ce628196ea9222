// Calls of methods on the states of a session: inputs, sizes, what a call changes, its results.
#pragma once

#include <vector>

#include "chunks.h"
#include "contexts.h"
#include "entries.h"
#include "kvc.h"

namespace kvc::lib {

// The inputs of one call.
struct Inputs {
  std::vector<kvc_array> arrays;
  bool left_out = false;  // the row lengths, for which `lengths` has as many as there are tokens
  std::vector<uint8_t> lengths;
};

// Copies between memory without gaps and an operand.
void copy_in(const void* from, const Tensor& to);
void copy_out(const Tensor& from, void* to);

// One call on the memory of a session; made once and used for all its calls, so that a call of
// sizes that were there before takes no memory.
class Transaction {
 public:
  explicit Transaction(StateMemory& memory);

  // Checks that a call has room, and notes what a failure would restore. `row_lengths` may be
  // null.
  void begin(const MethodEntry& entry, const Sizes& sizes, const Rows* row_lengths);
  // Writes the positions into the fields of cursors.
  void fill(std::vector<CursorMemory>& cursors, const std::string& method) const;
  void commit(const Sizes& sizes);
  // Restores states; `call` has run until step `count`, or is null if none has begun.
  void roll_back(BoundCall* call, int32_t count);

 private:
  bool advances(int cursor) const;
  void note_ends();

  StateMemory& memory_;
  const MethodEntry* entry_ = nullptr;
  std::vector<bool> known_, moved_, loose_;  // of each cursor
  std::vector<Rows> starts_, steps_, ends_, counted_;
  std::vector<Undo> undo_;  // of each write
  Rows added_;
};

class Caller {
 public:
  Caller(Bundle& bundle, StateMemory& memory);

  // Runs a method, in pieces if it has to be; results lie in `results` until the next call.
  void run(int method, const kvc_array* inputs, int32_t count, const kvc_array* wanted,
           int32_t wanted_count);
  // Gives the dtypes and dims of the results of a call without running it.
  void find_shapes(int method, const kvc_array* inputs, int32_t count);
  // Runs tokens of one row, and returns the logits after the last.
  const float* step(const int64_t* tokens, int64_t count, int64_t* vocabulary);

  std::vector<kvc_array> results;

 private:
  void take(const MethodEntry& entry, const kvc_array* inputs, int32_t count, Inputs* taken);
  void leave_out_lengths(const MethodEntry& entry, Inputs* taken) const;
  void solve(const MethodEntry& entry, const Inputs& inputs, Sizes* sizes) const;
  void check_input(const MethodEntry& entry, size_t input, const Inputs& inputs,
                   const Sizes& sizes) const;
  [[noreturn]] void mismatch(const MethodEntry& entry, size_t input, const kvc_array& found,
                             const std::string& note) const;
  void check_encoded(const MethodEntry& entry, const Inputs& inputs) const;
  void check_growth(const MethodEntry& entry, const Sizes& sizes) const;
  void restart(const MethodEntry& entry, const Inputs& inputs);
  void shape_results(const MethodEntry& entry, const Sizes& sizes);
  void check_wanted(const kvc_array* wanted, int32_t count) const;
  const Rows* read_lengths(const MethodEntry& entry, Inputs* inputs, const Sizes& sizes);
  void run_once(const MethodEntry& entry, Inputs* inputs);
  void run_steps(const MethodEntry& entry, BoundCall& call, const Inputs& inputs,
                 int32_t* reached);

  // pieces.cc
  Kind* narrowest(const MethodEntry& entry) const;
  int64_t count_excess(const MethodEntry& entry, const Inputs& inputs) const;
  int64_t count_outside(const MethodEntry& entry, const Inputs& inputs) const;
  int64_t excess_of_rows(const MethodEntry& entry, const Inputs& inputs, int64_t longest) const;
  std::vector<Chunk> plan_pieces(const MethodEntry& entry, int64_t count) const;
  [[noreturn]] void too_long(const MethodEntry& entry, int64_t count, const Kind& kind) const;
  void run_pieces(const std::vector<Chunk>& pieces, const Inputs& inputs);
  void take_piece(const Chunk& piece, int64_t first, const Inputs& inputs, const Rows& lengths,
                  Inputs* taken) const;
  void run_together(const std::vector<Chunk>& pieces, const Inputs& inputs, const Rows& lengths);
  Rows lengths_of_rows(const MethodEntry& entry, const Inputs& inputs) const;
  void find_stepping();
  void keep_bound(ChunkSizes* sizes) const;

  Bundle& bundle_;
  StateMemory& memory_;
  Transaction transaction_;
  Inputs inputs_;
  Sizes sizes_;
  Rows row_lengths_;
  std::vector<std::vector<uint8_t>> content_;  // of results
  bool bucketed_ = false;
  bool stepping_found_ = false;
  int decode_ = -1;
  std::vector<ChunkSizes> prefills_;
};

}  // namespace kvc::lib
