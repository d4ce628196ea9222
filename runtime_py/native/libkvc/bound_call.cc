#include "bound_call.h"

#include <algorithm>
#include <cstring>

#include "bundle.h"
#include "tables.h"

namespace kvc::lib {
namespace {

constexpr int64_t kMostOwn = int64_t{1} << 26;  // elements of cursors and filled regions
constexpr int64_t kSpareElements = 4096 / 8;
constexpr int64_t kMostElements = int64_t{1} << 40;

int64_t rounded(int64_t count) { return (count + 7) / 8 * 8; }  // to 64 bytes

}  // namespace

void BoundCall::refuse(const char* what) const {
  fail(KVC_DAMAGED, "the bound list of method %s: %s; the bundle was made to mislead, or by a kvc "
       "with a mistake",
       shown(bundle_->program().methods[static_cast<size_t>(method)].name).c_str(), what);
}

int64_t BoundCall::value(uint32_t form) const { return values_[form]; }

void BoundCall::bind(Bundle& bundle, const ListEntry& list, const Sizes& at,
                     const StateMemory& memory, uint8_t* scratch) {
  bundle_ = &bundle;
  method = list.method;
  table_ = bundle.lists().table;
  list_ = list.table;
  at_ = &memory;
  at_id_ = memory.id;
  scratch_ = scratch;
  scratch_nbytes_ = list.scratch_nbytes;
  sizes = at;
  const stored::BoundList& from = *list.table;
  fill_sizes(bundle.program(), sizes, &full_sizes_);
  if (!evaluate_forms(*table_, full_sizes_, &products_, &values_)) {
    refuse("a number of it has too many bits");
  }
  lay_out_own(list);
  moved_.clear();
  constants_.clear();
  const auto take = [&](const flatbuffers::Vector<uint32_t>& operands, std::vector<Tensor>* to) {
    to->resize(operands.size());
    for (uint32_t i = 0; i < operands.size(); ++i) place(operands.Get(i), memory, &(*to)[i]);
  };
  take(*from.operands(), &tensors_);
  take(*from.inputs(), &inputs_);
  take(*from.outputs(), &outputs_);
  integers_.resize(from.integers()->size() + 1);
  for (uint32_t i = 0; i < from.integers()->size(); ++i) {
    integers_[i] = value(from.integers()->Get(i));
  }
  numbers_.assign(from.numbers()->begin(), from.numbers()->end());
  for (uint32_t i = 0; i < from.varied_numbers()->size(); ++i) {
    numbers_[from.varied_numbers()->Get(i)] =
        static_cast<double>(value(from.varied_forms()->Get(i)));
  }
  numbers_.push_back(0);
  const auto& kernels = bundle.lists().kernels;
  steps_.resize(from.step_kernels()->size());
  for (uint32_t i = 0; i < steps_.size(); ++i) {
    const Run own = run_of(*from.operand_ends(), i);
    const auto operands = static_cast<int32_t>(own.end - own.begin);
    steps_[i] = Step{kernels[from.step_kernels()->Get(i)], operands,
                     tensors_.data() + own.begin,
                     integers_.data() + run_of(*from.integer_ends(), i).begin,
                     numbers_.data() + run_of(*from.number_ends(), i).begin};
  }
  note_regions(memory);
  checks_.run(steps_, bundle.program().methods[static_cast<size_t>(method)].name);
}

void BoundCall::lay_out_own(const ListEntry& list) {
  const stored::BoundList& from = *list.table;
  filled_.clear();
  for (const auto* used : {from.operands(), from.inputs(), from.outputs()}) {
    for (const uint32_t operand : *used) note_filled(operand);
  }
  int64_t total = 0;
  cursors_.clear();
  for (uint32_t i = 0; i < from.cursor_fields()->size(); ++i) {
    const uint32_t field = from.cursor_fields()->Get(i);
    const int64_t count = value(from.cursor_counts()->Get(i));
    if (count < 0 || count > kMostOwn) refuse("a cursor has an impossible number of elements");
    cursors_.push_back({static_cast<int>(field / 4), static_cast<CursorField>(field % 4), nullptr,
                        count});
    total += rounded(count);
  }
  for (const Filled& one : filled_) total += rounded(one.count);
  if (total > kMostOwn) refuse("its cursors take too much memory");
  own_.resize(static_cast<size_t>(total + 8 + kSpareElements));
  const auto begin = reinterpret_cast<uintptr_t>(own_.data());
  int64_t* next = reinterpret_cast<int64_t*>((begin + 63) / 64 * 64);
  for (CursorMemory& one : cursors_) {
    one.at = next;
    next += rounded(one.count);
  }
  for (Filled& one : filled_) {
    one.at = next;
    std::fill(next, next + one.count, value(one.form));
    next += rounded(one.count);
  }
}

void BoundCall::note_filled(uint32_t operand) {
  const auto region = static_cast<Region>(table_->operand_regions()->Get(operand));
  if (region != Region::kFilled) return;
  Tensor tensor;
  const int64_t nbytes = describe(operand, &tensor), most = kMostOwn * 8;
  const int64_t offset = value(table_->operand_offsets()->Get(operand));
  if (offset < 0 || offset > most || nbytes > most) refuse("an operand is too large");
  const int64_t count = (offset + nbytes + 7) / 8;
  const uint32_t form = table_->operand_places()->Get(operand);
  for (Filled& one : filled_) {
    if (one.form != form) continue;
    one.count = std::max(one.count, count);
    return;
  }
  filled_.push_back({form, count, nullptr});
}

int64_t BoundCall::describe(uint32_t operand, Tensor* tensor) const {
  const uint32_t layout = table_->operand_layouts()->Get(operand);
  const Run dims = run_of(*table_->layout_ends(), layout);
  *tensor = Tensor{};
  tensor->dtype = static_cast<DType>(table_->layout_dtypes()->Get(layout));
  tensor->rank = static_cast<int32_t>(dims.end - dims.begin);
  const int64_t itemsize = dtype_nbytes(static_cast<int32_t>(tensor->dtype));
  int64_t reach = 0;
  bool empty = false;
  for (int i = 0; i < tensor->rank; ++i) {
    const uint32_t at = dims.begin + static_cast<uint32_t>(i);
    const int64_t dim = value(table_->layout_dims()->Get(at));
    const int64_t stride = value(table_->layout_strides()->Get(at));
    int64_t step = 0;
    bool fits = dim >= 0 && dim <= kMostElements && stride >= 0 && stride <= kMostElements;
    fits = fits && multiply(std::max<int64_t>(dim - 1, 0), stride, &step);
    fits = fits && add(reach, step, &reach);
    if (!fits || reach > kMostElements) refuse("an operand has impossible dims");
    tensor->dims[i] = dim;
    tensor->strides[i] = stride;
    empty = empty || dim == 0;
  }
  return empty ? 0 : (reach + 1) * itemsize;
}

void BoundCall::place(uint32_t operand, const StateMemory& memory, Tensor* tensor) {
  const auto region = static_cast<Region>(table_->operand_regions()->Get(operand));
  *tensor = Tensor{};
  if (region == Region::kAbsent) return;
  const uint32_t number = table_->operand_places()->Get(operand);
  const int64_t nbytes = describe(operand, tensor);
  const int64_t offset = value(table_->operand_offsets()->Get(operand));
  const int64_t itemsize = dtype_nbytes(static_cast<int32_t>(tensor->dtype));
  uint8_t* base = nullptr;
  int64_t held = 0;
  switch (region) {
    case Region::kConstant: {
      base = const_cast<uint8_t*>(bundle_->constant(static_cast<int>(number)));
      held = bundle_->constant_nbytes(static_cast<int>(number));
      if (constants_.empty() || constants_.back() != static_cast<int>(number)) {
        constants_.push_back(static_cast<int>(number));
      }
      break;
    }
    case Region::kState:
      base = memory.base(static_cast<int>(number));
      held = memory.layout(static_cast<int>(number)).nbytes;
      moved_.push_back({tensor, static_cast<int>(number), offset});
      break;
    case Region::kScratch:
      base = scratch_;
      held = static_cast<int64_t>(scratch_nbytes_);
      break;
    case Region::kCursor:
      base = reinterpret_cast<uint8_t*>(cursors_[number].at);
      held = cursors_[number].count * 8;
      break;
    default:
      for (const Filled& one : filled_) {
        if (one.form != number) continue;
        base = reinterpret_cast<uint8_t*>(one.at);
        held = one.count * 8;
      }
  }
  if (offset < 0 || offset > held || nbytes > held - offset || offset % itemsize != 0) {
    refuse("an operand lies outside of its memory");
  }
  tensor->data = base + offset;
}

void BoundCall::move(const StateMemory& memory) {
  if (at_id_ == memory.id) return;
  for (const Moved& one : moved_) one.tensor->data = memory.base(one.state) + one.offset;
  at_ = &memory;
  at_id_ = memory.id;
}

void BoundCall::note_regions(const StateMemory& memory) {
  checks_.clear();
  for (uint32_t i = 0; i < steps_.size(); ++i) {
    const Run integers = run_of(*list_->integer_ends(), i);
    const Run numbers = run_of(*list_->number_ends(), i);
    checks_.add_step(integers.end - integers.begin, numbers.end - numbers.begin);
  }
  std::sort(constants_.begin(), constants_.end(),
            [&](int a, int b) { return bundle_->constant(a) < bundle_->constant(b); });
  const uint8_t* last = nullptr;  // several names may have one blob
  for (const int name : constants_) {
    const uint8_t* begin = bundle_->constant(name);
    if (begin != last) checks_.add_region(begin, bundle_->constant_nbytes(name), false);
    last = begin;
  }
  for (size_t i = 0; i < memory.count(); ++i) {
    const int state = static_cast<int>(i);
    checks_.add_region(memory.base(state), memory.layout(state).nbytes, true);
  }
  checks_.add_region(scratch_, static_cast<int64_t>(scratch_nbytes_), true);
  for (const CursorMemory& one : cursors_) checks_.add_region(one.at, one.count * 8, false);
  for (const Filled& one : filled_) checks_.add_region(one.at, one.count * 8, false);
}

bool BoundCall::is_written(int32_t count, int state) {
  note_regions(*at_);
  return checks_.is_written(steps_, count, at_->base(state));
}

}  // namespace kvc::lib
