// A bound list at the sizes of a call: steps with addresses, ready to run.
#pragma once

#include <cstdint>
#include <vector>

#include "../kernels.h"
#include "bound_tables.h"
#include "state_memory.h"
#include "step_checks.h"

namespace kvc::lib {

class Bundle;

// Memory of a field of a cursor, which is filled before each run.
struct CursorMemory {
  int cursor;
  CursorField field;
  int64_t* at;
  int64_t count;
};

// Memory is kept when a call is bound again, for other sizes.
class BoundCall {
 public:
  int method = -1;
  Sizes sizes;

  // Binds a list; the states are those of `memory`, for now. Fails as KVC_DAMAGED if an operand
  // lies outside of its memory or a step breaks the contract of its kernel.
  void bind(Bundle& bundle, const ListEntry& list, const Sizes& at, const StateMemory& memory,
            uint8_t* scratch);
  // Moves all operands in states to those of a session of the same sizes.
  void move(const StateMemory& memory);

  const std::vector<Step>& steps() const { return steps_; }
  std::vector<CursorMemory>& cursors() { return cursors_; }
  const Tensor& input(size_t i) const { return inputs_[i]; }
  const Tensor& output(size_t i) const { return outputs_[i]; }
  // Whether one of the first `count` steps writes a state of the session that it was last run for.
  bool is_written(int32_t count, int state);

 private:
  struct Moved {
    Tensor* tensor;
    int state;
    int64_t offset;
  };
  struct Filled {
    uint32_t form;
    int64_t count;
    int64_t* at;
  };

  void lay_out_own(const ListEntry& list);
  void note_filled(uint32_t operand);
  int64_t value(uint32_t form) const;
  // Fills dtype, dims and strides, and returns how many bytes from its first one it spans.
  int64_t describe(uint32_t operand, Tensor* tensor) const;
  void place(uint32_t operand, const StateMemory& memory, Tensor* tensor);
  void note_regions(const StateMemory& memory);
  [[noreturn]] void refuse(const char* what) const;

  const stored::Bounds* table_ = nullptr;
  Bundle* bundle_ = nullptr;
  const stored::BoundList* list_ = nullptr;
  const StateMemory* at_ = nullptr;
  uint64_t at_id_ = 0;  // another session may get the address of one that was closed
  uint8_t* scratch_ = nullptr;
  uint64_t scratch_nbytes_ = 0;
  Sizes full_sizes_;
  std::vector<int64_t> products_, values_;
  std::vector<int64_t> own_;  // memory of cursors and filled regions
  std::vector<CursorMemory> cursors_;
  std::vector<Filled> filled_;
  std::vector<int> constants_;  // named data that it uses
  std::vector<Step> steps_;
  std::vector<Tensor> tensors_, inputs_, outputs_;
  std::vector<int64_t> integers_;
  std::vector<double> numbers_;
  std::vector<Moved> moved_;
  StepChecks checks_;
};

}  // namespace kvc::lib
