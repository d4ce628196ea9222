// The results of calls: their shapes, before and after a call.
#include "bundle.h"
#include "calls.h"
#include "errors.h"

namespace kvc::lib {

void Caller::shape_results(const MethodEntry& entry, const Sizes& sizes) {
  const auto& outputs = entry.method->outputs;
  const Program& program = bundle_.program();
  results.resize(outputs.size());
  if (content_.size() < outputs.size()) content_.resize(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    kvc_array& array = results[i];
    array = kvc_array{nullptr, outputs[i].dtype, static_cast<int32_t>(outputs[i].dims.size()), {}};
    for (size_t axis = 0; axis < outputs[i].dims.size(); ++axis) {
      if (!program.expressions.known(outputs[i].dims[axis], sizes)) {
        fail(KVC_DAMAGED, "method %s: nothing determines a size of output %zu",
             shown(entry.method->name).c_str(), i);
      }
      array.dims[axis] = program.evaluate(outputs[i].dims[axis], sizes);
    }
  }
}

void Caller::check_wanted(const kvc_array* wanted, int32_t count) const {
  if (wanted == nullptr) return;
  if (count != static_cast<int32_t>(results.size())) {
    fail(KVC_BAD_ARGUMENT, "the method has %zu outputs, found %d", results.size(), count);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const kvc_array &given = wanted[i], &own = results[i];
    if (given.data == nullptr) continue;
    bool same = given.dtype == own.dtype && given.rank == own.rank;
    for (int axis = 0; same && axis < own.rank; ++axis) same = given.dims[axis] == own.dims[axis];
    if (same) continue;
    fail(KVC_BAD_ARGUMENT, "output %zu: expected an array %s", i,
         shape_text(own.dtype, own.dims, own.rank).c_str());
  }
}

void Caller::find_shapes(int method, const kvc_array* inputs, int32_t count) {
  const MethodEntry& entry = bundle_.entries()[static_cast<size_t>(method)];
  take(entry, inputs, count, &inputs_);
  const int64_t excess = memory_.limited || bucketed_ ? count_excess(entry, inputs_) : 0;
  const std::vector<Chunk> pieces =
      excess > 0 ? plan_pieces(entry, excess) : std::vector<Chunk>();
  Sizes sizes;
  if (pieces.empty()) {
    solve(entry, inputs_, &sizes);
    shape_results(entry, sizes);
    return;
  }
  const Chunk& last = pieces.back();
  const MethodEntry& own = bundle_.entries()[static_cast<size_t>(last.method)];
  Inputs piece;
  take_piece(last, excess - last.count, inputs_, lengths_of_rows(own, inputs_), &piece);
  solve(own, piece, &sizes);
  shape_results(own, sizes);
}

}  // namespace kvc::lib
