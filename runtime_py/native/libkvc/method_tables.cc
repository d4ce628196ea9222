// A method: the types of what goes in and out, what it writes, and where cursors go.
#include <algorithm>

#include "tables.h"

namespace kvc::lib {
namespace {

using stored::StorageKind;

constexpr const char* kWhere = "methods";

class MethodReader {
 public:
  MethodReader(const stored::Method& table, const Pool& pool, const Program& program)
      : table_(table), graph_(*table.graph()), pool_(pool), program_(program) {}

  Method read() {
    made_.name = text_in(table_.name());
    made_.role = text_in(table_.role());
    made_.adapts = table_.adapts().has_value();
    const size_t values = graph_.value_types()->size();
    const bool alike =
        graph_.value_storages()->size() == values && graph_.value_places()->size() == values;
    require(alike, kWhere, "values lack types or places");
    for (uint32_t i = 0; i < values; ++i) read_value(i);
    read_inputs();
    for (const uint32_t output : *graph_.outputs()) made_.outputs.push_back(type_of(output));
    check_ids(*table_.writes(), program_.states.size(), kWhere);
    made_.writes.assign(table_.writes()->begin(), table_.writes()->end());
    for (const auto* advance : *table_.advances()) read_advance(*advance);
    read_accesses(*table_.accesses());
    return std::move(made_);
  }

 private:
  const Type& type_of(uint32_t value) const {
    require(value < graph_.value_types()->size(), kWhere, "a number of a value is out of range");
    return pool_.type(graph_.value_types()->Get(value), kWhere);
  }

  StorageKind storage(uint32_t value) const {
    return static_cast<StorageKind>(graph_.value_storages()->Get(value));
  }

  void read_value(uint32_t value) {
    const uint64_t place = graph_.value_places()->Get(value);
    const Type& type = type_of(value);
    if (storage(value) == StorageKind::STATE) {
      require(place < program_.states.size(), kWhere, "a number of a state is out of range");
      const State& state = program_.states[place];
      made_.states_read.push_back(static_cast<int>(place));
      if (state.kind != StateKind::kAppend) return;
      require(state.axis < static_cast<int>(type.dims.size()), kWhere, "a state lacks its axis");
      const Dim length = type.dims[static_cast<size_t>(state.axis)];
      made_.slots.push_back(Slot{static_cast<int>(place), length});
    } else if (storage(value) == StorageKind::CURSOR) {
      require(place / 4 < program_.cursors.size(), kWhere, "a number of a cursor is out of range");
      const auto field = static_cast<CursorField>(place % 4);
      made_.cursor_values.push_back(CursorValue{static_cast<int>(place / 4), field, type.dims});
    }
  }

  void read_inputs() {
    const auto& inputs = *graph_.inputs();
    require(table_.input_names()->size() == inputs.size(), kWhere, "inputs lack names");
    for (uint32_t i = 0; i < inputs.size(); ++i) {
      const Type& type = type_of(inputs.Get(i));
      const bool borrowed = storage(inputs.Get(i)) == StorageKind::CALLER;
      const std::string name = text_in(table_.input_names()->Get(i));
      made_.inputs.push_back(Input{name, type, borrowed});
    }
  }

  void read_advance(const stored::Advance& table) {
    Advance advance{static_cast<int>(table.cursor()), {}, -1};
    require(table.cursor() < program_.cursors.size(), kWhere, "an unknown cursor advances");
    require(made_.advance_of(advance.cursor) == nullptr, kWhere, "a cursor advances twice");
    const bool counted = table.tokens_kind().has_value();
    require(counted == table.tokens().has_value(), kWhere, "an advance lacks its kind");
    if (counted) advance.tokens = pool_.dim(*table.tokens_kind(), *table.tokens(), kWhere);
    if (table.lengths().has_value()) {
      require(*table.lengths() < made_.inputs.size(), kWhere, "row lengths of no input");
      const Type& type = made_.inputs[*table.lengths()].type;
      const bool fits = type.dtype == KVC_INT64 || type.dtype == KVC_BOOL;
      require(fits && counted && type.dims.size() == 1, kWhere, "row lengths of another type");
      advance.lengths = static_cast<int>(*table.lengths());
    }
    made_.advances.push_back(advance);
  }

  void read_accesses(const stored::Accesses& table) {
    const size_t count = table.roots()->size();
    const bool alike = table.modes()->size() == count &&
                       table.size_kinds()->size() == count && table.sizes()->size() == count;
    require(alike, kWhere, "accesses lack parts");
    check_ids(*table.roots(), graph_.value_types()->size(), kWhere);
    check_ids(*table.modes(), 4, kWhere);
    for (uint32_t i = 0; i < count; ++i) read_access(table, i);
  }

  void read_access(const stored::Accesses& table, uint32_t i) {
    const uint32_t root = table.roots()->Get(i);
    const auto mode = static_cast<AccessMode>(table.modes()->Get(i));
    const auto kind = static_cast<stored::DimKind>(table.size_kinds()->Get(i));
    const Dim size = pool_.dim(kind, table.sizes()->Get(i), kWhere);
    const bool lengthens = mode == AccessMode::kAppend || mode == AccessMode::kReplace;
    if (storage(root) != StorageKind::STATE) return;
    const auto state = static_cast<int>(graph_.value_places()->Get(root));
    const bool grows = program_.states[static_cast<size_t>(state)].kind == StateKind::kAppend;
    require(grows || !lengthens, kWhere, "a state grows that has no length");
    const auto& writes = made_.writes;
    const bool declared = std::find(writes.begin(), writes.end(), state) != writes.end();
    require(declared, kWhere, "a state is written that is not declared so");
    made_.written.push_back(Write{state, mode, size});
  }

  const stored::Method& table_;
  const stored::Graph& graph_;
  const Pool& pool_;
  const Program& program_;
  Method made_;
};

}  // namespace

Method read_method(const stored::Method& table, const Pool& pool, const Program& program) {
  return MethodReader(table, pool, program).read();
}

}  // namespace kvc::lib
