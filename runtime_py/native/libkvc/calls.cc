#include "calls.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "../pool.h"
#include "bundle.h"
#include "errors.h"
#include "failures.h"

// api.cc
extern "C" int32_t kvc_run(const kvc::Step* steps, int32_t count, int32_t first, int32_t threads,
                           int32_t milliseconds, kvc::Failure* failure, const kvc::Lent* lent,
                           int64_t* ended);

namespace kvc::lib {
namespace {

// Calls function(place, run) for the elements of an operand in the order of its dims: how many
// bytes after the first they lie, and how many lie together.
template <class F>
void for_elements(const Tensor& x, const F& function) {
  const int64_t itemsize = dtype_nbytes(static_cast<int32_t>(x.dtype));
  if (x.count() == 0) return;
  if (x.packed()) return function(int64_t{0}, x.count() * itemsize);
  const bool together = x.strides[x.rank - 1] == 1;
  const int outer = together ? x.rank - 1 : x.rank;
  int64_t index[kMaxRank] = {}, place = 0;
  for (;;) {
    function(place * itemsize, (together ? x.dims[outer] : 1) * itemsize);
    int axis = outer - 1;
    for (; axis >= 0; --axis) {
      place += x.strides[axis];
      if (++index[axis] < x.dims[axis]) break;
      place -= x.dims[axis] * x.strides[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

int64_t nbytes_of(const kvc_array& array) {
  int64_t nbytes = dtype_nbytes(array.dtype);
  for (int i = 0; i < array.rank; ++i) nbytes *= array.dims[i];
  return nbytes;
}

}  // namespace

void copy_in(const void* from, const Tensor& to) {
  const auto* next = static_cast<const uint8_t*>(from);
  for_elements(to, [&](int64_t place, int64_t nbytes) {
    std::memcpy(to.as<uint8_t>() + place, next, static_cast<size_t>(nbytes));
    next += nbytes;
  });
}

void copy_out(const Tensor& from, void* to) {
  auto* next = static_cast<uint8_t*>(to);
  for_elements(from, [&](int64_t place, int64_t nbytes) {
    std::memcpy(next, from.as<uint8_t>() + place, static_cast<size_t>(nbytes));
    next += nbytes;
  });
}

Caller::Caller(Bundle& bundle, StateMemory& memory)
    : bundle_(bundle), memory_(memory), transaction_(memory) {
  for (const Symbol& symbol : bundle.program().expressions.symbols) {
    bucketed_ = bucketed_ || !symbol.buckets.empty();
  }
}

void Caller::mismatch(const MethodEntry& entry, size_t input, const kvc_array& found,
                      const std::string& note) const {
  const Input& declared = entry.method->inputs[input];
  const int rank = std::min(std::max(found.rank, 0), KVC_MOST_DIMS);
  fail(KVC_INPUT_MISMATCH, "method %s, input %s: expected %s%s, found %s",
       shown(entry.method->name).c_str(), shown(declared.name).c_str(),
       bundle_.program().expressions.text(declared.type).c_str(), note.c_str(),
       shape_text(found.dtype, found.dims, rank).c_str());
}

void Caller::take(const MethodEntry& entry, const kvc_array* inputs, int32_t count,
                  Inputs* taken) {
  const auto& declared = entry.method->inputs;
  if (count != static_cast<int32_t>(declared.size())) {
    fail(KVC_INPUT_MISMATCH, "method %s takes %zu inputs, found %d",
         shown(entry.method->name).c_str(), declared.size(), count);
  }
  taken->arrays.assign(inputs, inputs + count);
  taken->left_out = false;
  for (size_t i = 0; i < declared.size(); ++i) {
    kvc_array& array = taken->arrays[i];
    if (static_cast<int>(i) == entry.row_lengths && array.data == nullptr) {
      taken->left_out = true;
      continue;
    }
    bool fits = array.dtype == declared[i].type.dtype &&
                array.rank == static_cast<int32_t>(declared[i].type.dims.size());
    int64_t elements = 1;
    for (int j = 0; fits && j < array.rank; ++j) {
      const int64_t dim = array.dims[j];
      fits = dim >= 0 && dim < int64_t{1} << 31 && multiply(elements, dim, &elements);
    }
    if (!fits || elements > int64_t{1} << 40) mismatch(entry, i, array, "");
    if (array.data == nullptr && elements > 0) {
      fail(KVC_BAD_ARGUMENT, "method %s, input %s: its data is null",
           shown(entry.method->name).c_str(), shown(declared[i].name).c_str());
    }
  }
  if (taken->left_out) leave_out_lengths(entry, taken);
}

// Makes an array of as many row lengths as there are rows.
void Caller::leave_out_lengths(const MethodEntry& entry, Inputs* taken) const {
  const auto leaf = static_cast<size_t>(entry.row_lengths);
  const Type& type = entry.method->inputs[leaf].type;
  const Program& program = bundle_.program();
  int64_t rows = -1;
  if (program.expressions.known(type.dims[0], memory_.sizes())) {
    rows = program.evaluate(type.dims[0], memory_.sizes());
  }
  for (size_t i = 0; rows < 0 && i < taken->arrays.size(); ++i) {
    const auto& dims = entry.method->inputs[i].type.dims;
    for (size_t axis = 0; i != leaf && axis < dims.size(); ++axis) {
      if (dims[axis] == type.dims[0]) rows = taken->arrays[i].dims[axis];
    }
  }
  if (rows < 0 || rows > 1 << 20) {
    fail(KVC_BAD_ARGUMENT, "method %s: its row lengths cannot be left out",
         shown(entry.method->name).c_str());
  }
  taken->lengths.assign(static_cast<size_t>(rows * dtype_nbytes(type.dtype)) + 8, 0);
  kvc_array& array = taken->arrays[leaf];
  array = kvc_array{taken->lengths.data(), type.dtype, 1, {rows}};
}

void Caller::solve(const MethodEntry& entry, const Inputs& inputs, Sizes* sizes) const {
  const Program& program = bundle_.program();
  const Expressions& expressions = program.expressions;
  const Method& method = *entry.method;
  *sizes = memory_.sizes();
  for (const Slot& slot : method.slots) {
    expressions.settle(slot.length, memory_.lengths[static_cast<size_t>(slot.state)], sizes);
  }
  for (size_t i = 0; i < method.inputs.size(); ++i) {
    const auto& dims = method.inputs[i].type.dims;
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      expressions.settle(dims[axis], inputs.arrays[i].dims[axis], sizes);
    }
  }
  for (size_t i = 0; i < method.inputs.size(); ++i) check_input(entry, i, inputs, *sizes);
  for (const Slot& slot : method.slots) {
    if (!slot.length.affine && slot.length.value == 0) continue;  // it takes any length
    const int64_t found = memory_.lengths[static_cast<size_t>(slot.state)];
    bool fits = expressions.known(slot.length, *sizes);
    expressions.each_symbol(slot.length, [&](uint32_t symbol) {
      fits = fits && expressions.symbols[symbol].takes((*sizes)[symbol]);
    });
    if (fits && expressions.evaluate(slot.length, *sizes) == found) continue;
    fail(KVC_STATE_MISMATCH, "method %s: the state %s has length %lld, expected %s",
         shown(method.name).c_str(),
         shown(program.states[static_cast<size_t>(slot.state)].name).c_str(),
         static_cast<long long>(found), expressions.text(slot.length).c_str());
  }
}

void Caller::check_input(const MethodEntry& entry, size_t input, const Inputs& inputs,
                         const Sizes& sizes) const {
  const Expressions& expressions = bundle_.program().expressions;
  const kvc_array& array = inputs.arrays[input];
  const auto& dims = entry.method->inputs[input].type.dims;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (!expressions.known(dims[axis], sizes)) {
      mismatch(entry, input, array, " (no input determines a size of it)");
    }
    expressions.each_symbol(dims[axis], [&](uint32_t symbol) {
      if (!expressions.symbols[symbol].takes(sizes[symbol])) mismatch(entry, input, array, "");
    });
    if (expressions.evaluate(dims[axis], sizes) == array.dims[axis]) continue;
    std::string here;
    for (const Dim& dim : dims) {
      if (!dim.affine) continue;
      here += (here.empty() ? " (here " : ", ") + expressions.text(dim) + " = " +
              std::to_string(expressions.evaluate(dim, sizes));
    }
    mismatch(entry, input, array, here.empty() ? "" : here + ")");
  }
}

void Caller::check_encoded(const MethodEntry& entry, const Inputs& inputs) const {
  if (entry.needs_cursor < 0) return;
  Rows encoded;
  memory_.position(entry.needs_cursor, &encoded);
  const kvc_array* lengths = entry.row_lengths >= 0 && !inputs.left_out
                                 ? &inputs.arrays[static_cast<size_t>(entry.row_lengths)]
                                 : nullptr;
  for (size_t row = 0; row < encoded.size(); ++row) {
    if (encoded[row] != 0) continue;
    if (lengths != nullptr) {  // rows without tokens need no encoder
      if (static_cast<int64_t>(row) >= lengths->dims[0]) continue;
      const bool any = lengths->dtype == KVC_BOOL
                           ? static_cast<const uint8_t*>(lengths->data)[row] != 0
                           : static_cast<const int64_t*>(lengths->data)[row] != 0;
      if (!any) continue;
    }
    const Method& encoder = bundle_.program().methods[static_cast<size_t>(entry.encoder)];
    fail(KVC_NOT_ENCODED, "method %s reads what %s makes, which has not run; call it first",
         shown(entry.method->name).c_str(), shown(encoder.name).c_str());
  }
}

void Caller::check_growth(const MethodEntry& entry, const Sizes& sizes) const {
  const Program& program = bundle_.program();
  for (const Growth& growth : entry.growth) {
    const State& state = program.states[static_cast<size_t>(growth.state)];
    const bool counts = !program.cursors.empty() && program.cursors[0].kind == CursorKind::kLength;
    const bool own = state.cursor <= 0 && (counts || state.at_position());
    int64_t room = memory_.layout(growth.state).slots;
    if (own && memory_.capacity() >= 0) room = std::min(room, memory_.capacity());
    const int64_t length = memory_.lengths[static_cast<size_t>(growth.state)];
    for (const Dim& dim : growth.reach) {
      const int64_t reach = program.evaluate(dim, sizes);
      if (reach >= 0 && reach <= room) continue;
      fail(KVC_CACHE_OVERFLOW,
           "the cache is full: the state %s holds %lld tokens, %lld more do not fit into %lld; "
           "open a session of more capacity, rewind or reset",
           shown(state.name).c_str(), static_cast<long long>(length),
           static_cast<long long>(std::max<int64_t>(reach - length, 0)),
           static_cast<long long>(room));
    }
  }
}

// Resets the session before an encoder runs, after a check that the call has room.
void Caller::restart(const MethodEntry& entry, const Inputs& inputs) {
  Sizes sizes;
  solve(entry, inputs, &sizes);
  for (const Advance& advance : entry.method->advances) {
    if (!advance.tokens) continue;
    Rows starts;
    if (!memory_.known_position(advance.cursor, &starts)) continue;
    const int64_t tokens = bundle_.program().evaluate(*advance.tokens, sizes);
    memory_.check_room(advance.cursor, Rows(starts.size(), 0), Rows(starts.size(), tokens));
  }
  memory_.reset();
}

const Rows* Caller::read_lengths(const MethodEntry& entry, Inputs* inputs, const Sizes& sizes) {
  if (entry.row_lengths < 0) return nullptr;
  const Program& program = bundle_.program();
  const kvc_array& array = inputs->arrays[static_cast<size_t>(entry.row_lengths)];
  const int64_t most = program.evaluate(*entry.method->advance_of(entry.cursor)->tokens, sizes);
  row_lengths_.resize(static_cast<size_t>(array.dims[0]));
  for (size_t row = 0; row < row_lengths_.size(); ++row) {
    int64_t& length = row_lengths_[row];
    if (array.dtype == KVC_BOOL) {
      auto* own = static_cast<uint8_t*>(array.data) + row;
      if (inputs->left_out) *own = static_cast<uint8_t>(most);
      length = *own;
    } else {
      auto* own = static_cast<int64_t*>(array.data) + row;
      if (inputs->left_out) *own = most;
      length = *own;
    }
    if (length >= 0 && length <= most) continue;
    fail(KVC_INPUT_MISMATCH,
         "method %s: expected row lengths of 0 to %lld, the tokens of this call; row %zu has %lld",
         shown(entry.method->name).c_str(), static_cast<long long>(most), row,
         static_cast<long long>(length));
  }
  return &row_lengths_;
}

void Caller::run_once(const MethodEntry& entry, Inputs* inputs) {
  bundle_.check_unchanged();
  solve(entry, *inputs, &sizes_);
  check_growth(entry, sizes_);
  shape_results(entry, sizes_);
  const ContextPool::Lease context(bundle_.contexts(), memory_);
  BoundCall& call = context->bind(bundle_, entry.id, sizes_, memory_);
  for (size_t i = 0; i < inputs->arrays.size(); ++i) {
    const kvc_array& given = inputs->arrays[i];
    const Tensor& to = call.input(i);
    const bool same = given.rank == to.rank && given.dtype == static_cast<int32_t>(to.dtype) &&
                      std::equal(to.dims, to.dims + to.rank, given.dims);
    if (!same) fail(KVC_DAMAGED, "a bound list puts an input into another shape");
  }
  const Rows* row_lengths = read_lengths(entry, inputs, sizes_);
  int32_t reached = 0;
  if (entry.only_reads) {
    run_steps(entry, call, *inputs, &reached);
    return;
  }
  transaction_.begin(entry, sizes_, row_lengths);
  bool begun = false;
  try {
    transaction_.fill(call.cursors(), entry.method->name);
    begun = true;
    run_steps(entry, call, *inputs, &reached);
    transaction_.commit(sizes_);
  } catch (...) {
    transaction_.roll_back(begun ? &call : nullptr, reached);
    throw;
  }
}

// Runs all steps, and copies the results. `reached` becomes how many steps may have written.
void Caller::run_steps(const MethodEntry& entry, BoundCall& call, const Inputs& inputs,
                       int32_t* reached) {
  for (size_t i = 0; i < inputs.arrays.size(); ++i) copy_in(inputs.arrays[i].data, call.input(i));
  const auto& steps = call.steps();
  const auto count = static_cast<int32_t>(steps.size());
  Failure failure{};
  for (int32_t next = 0; next < count;) {
    next = kvc_run(steps.data(), count, next, bundle_.threads,
                   std::numeric_limits<int32_t>::max(), &failure, nullptr, nullptr);
    if (failure.fault == Fault::kNone) continue;
    // A kernel that lacks memory may have written; any other has written nothing.
    *reached = next + (failure.fault == Fault::kNoMemory);
    refuse_step(entry.method->name, failure);
  }
  *reached = count;
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& from = call.output(i);
    kvc_array& to = results[i];
    const bool same = to.rank == from.rank && to.dtype == static_cast<int32_t>(from.dtype) &&
                      std::equal(from.dims, from.dims + from.rank, to.dims);
    if (!same) fail(KVC_DAMAGED, "a bound list has an output of another shape");
    content_[i].resize(static_cast<size_t>(nbytes_of(to)) + 1);
    to.data = content_[i].data();
    copy_out(from, to.data);
  }
}

void Caller::run(int method, const kvc_array* inputs, int32_t count, const kvc_array* wanted,
                 int32_t wanted_count) {
  const MethodEntry& entry = bundle_.entries()[static_cast<size_t>(method)];
  bundle_.lists();
  take(entry, inputs, count, &inputs_);
  memory_.check_usable();
  check_encoded(entry, inputs_);
  if (wanted != nullptr) {
    const bool any = std::any_of(wanted, wanted + std::max(wanted_count, 0),
                                 [](const kvc_array& one) { return one.data != nullptr; });
    if (any) find_shapes(method, inputs, count);
    if (any) check_wanted(wanted, wanted_count);
  }
  if (entry.restarts) restart(entry, inputs_);
  const int64_t excess = memory_.limited || bucketed_ ? count_excess(entry, inputs_) : 0;
  const std::vector<Chunk> pieces =
      excess > 0 ? plan_pieces(entry, excess) : std::vector<Chunk>();
  if (pieces.empty()) {
    run_once(entry, &inputs_);
  } else {
    run_pieces(pieces, inputs_);
  }
  if (!entry.method->writes.empty()) memory_.pending.clear();
}

}  // namespace kvc::lib
