// The tables of a program but its methods: data, states, cursors, metadata.
#include <algorithm>
#include <cstring>

#include "tables.h"

namespace kvc::lib {
namespace {

void read_buckets(const stored::Program& table, Expressions* expressions) {
  auto& symbols = expressions->symbols;
  const auto& sizes = *table.bucket_sizes();
  check_runs(*table.bucket_ends(), symbols.size(), sizes.size(), "buckets");
  for (uint32_t i = 0; i < symbols.size(); ++i) {
    const Run run = run_of(*table.bucket_ends(), i);
    for (uint32_t j = run.begin; j < run.end; ++j) {
      const int64_t last = j == run.begin ? symbols[i].lower - 1 : sizes.Get(j - 1);
      const bool fits = sizes.Get(j) > last && sizes.Get(j) <= symbols[i].upper;
      require(fits, "buckets", "they do not ascend within the symbol's bounds");
      symbols[i].buckets.push_back(sizes.Get(j));
    }
  }
}

bool is_plain_name(const std::string& name) {
  if (name.empty() || name.size() > 128 || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           c == '_' || c == '-' || c == '.';
  });
}

void read_files(const stored::Program& table, Program* program) {
  for (const auto* file : *table.files()) {
    DataFile made{text_in(file->name()), {}};
    const bool own = program->files.empty();
    require(file->digest()->size() == (own ? 0 : 32), "data files", "a digest has another length");
    require(own ? made.name.empty() : is_plain_name(made.name), "data files", "a name is a path");
    if (!own) std::memcpy(made.digest.data(), file->digest()->data(), 32);
    program->files.push_back(made);
  }
  const size_t count = program->files.size();
  require(count >= 1 && count <= 256, "data files", "there are too many, or none");
}

void read_blobs(const stored::Blobs& table, Program* program) {
  const uint32_t count = table.nbytes()->size();
  const bool alike = table.digests()->size() == size_t{32} * count &&
                     table.files()->size() == count && table.offsets()->size() == count &&
                     table.aligns()->size() == count;
  require(alike, "blobs", "they lack parts");
  check_ids(*table.files(), program->files.size(), "blobs");
  for (uint32_t i = 0; i < count; ++i) {
    Blob blob{{}, table.nbytes()->Get(i), table.offsets()->Get(i), table.files()->Get(i),
              table.aligns()->Get(i)};
    std::memcpy(blob.digest.data(), table.digests()->data() + size_t{32} * i, 32);
    const uint32_t align = blob.align;
    const bool power = align != 0 && (align & (align - 1)) == 0 && align <= 1 << 16;
    require(power && blob.offset % align == 0, "blobs", "one is not aligned");
    require(blob.nbytes < uint64_t{1} << 40, "blobs", "one is too large");
    program->blobs.push_back(blob);
  }
}

void read_names(const stored::Names& table, const Pool& pool, Program* program) {
  const uint32_t count = table.names()->size();
  const bool alike = table.blobs()->size() == count && table.types()->size() == count &&
                     table.formats()->size() == count;
  require(alike, "named data", "it lacks parts");
  check_ids(*table.blobs(), program->blobs.size(), "named data");
  for (uint32_t i = 0; i < count; ++i) {
    NamedData named{text_in(table.names()->Get(i)), pool.string(table.formats()->Get(i), "formats"),
                    table.blobs()->Get(i), pool.type(table.types()->Get(i), "named data")};
    const auto& dims = named.type.dims;
    const bool fixed = std::none_of(dims.begin(), dims.end(), [](Dim dim) { return dim.affine; });
    require(fixed, "named data", "a type is not static");
    int64_t nbytes = dtype_nbytes(named.type.dtype);
    for (const Dim& dim : dims) {
      require(multiply(nbytes, dim.value, &nbytes), "named data", "a type is too large");
    }
    const uint64_t held = program->blobs[named.blob].nbytes;
    const bool plain = named.format == "plain" || named.format == "file";
    const bool whole = !plain || held == static_cast<uint64_t>(nbytes);
    require(whole, "named data", "a blob is of another size");
    const bool small = named.format != "slot" || nbytes < int64_t{1} << 40;
    require(small, "named data", "a slot is too large");
    program->names.push_back(std::move(named));
  }
}

State read_state(const stored::State& table, const Pool& pool, const Program& program) {
  const char* where = "states";
  State state;
  state.name = text_in(table.name());
  state.type = pool.type(table.type(), where);
  state.kind = static_cast<StateKind>(table.kind());
  require(state.kind <= StateKind::kCounter, where, "an unknown kind");
  const size_t rank = state.type.dims.size();
  state.axis = table.axis().has_value() ? *table.axis() : -1;
  const bool flat = state.kind == StateKind::kPlain || state.kind == StateKind::kCounter;
  require(flat == (state.axis < 0) && state.axis < static_cast<int>(rank), where, "a wrong axis");
  state.layout.assign(table.layout()->begin(), table.layout()->end());
  std::vector<int> order = state.layout;
  std::sort(order.begin(), order.end());
  require(order.size() == rank, where, "a layout has another rank");
  for (size_t i = 0; i < rank; ++i) {
    require(order[i] == static_cast<int>(i), where, "a layout is no order of the dims");
  }
  const bool counts = state.type.dtype == KVC_INT32 || state.type.dtype == KVC_INT64;
  require(state.kind != StateKind::kCounter || (counts && rank <= 1), where, "a wrong counter");
  state.initial = -1;
  if (table.initial().has_value()) {
    require(*table.initial() < program.names.size(), where, "an unknown initial value");
    state.initial = static_cast<int>(*table.initial());
    const NamedData& start = program.names[*table.initial()];
    const bool fits = start.type == state.type && start.format == "plain";
    require(fits && state.kind != StateKind::kAppend, where, "an initial value of another type");
  }
  require(table.reset() <= stored::ResetRule::KEEP, where, "an unknown reset rule");
  state.kept = table.reset() == stored::ResetRule::KEEP;
  state.cursor = table.cursor().has_value() ? static_cast<int>(*table.cursor()) : -1;
  require(state.kind != StateKind::kCounter || state.cursor >= 0, where, "a counter of no cursor");
  require(state.kind != StateKind::kPlain || state.cursor < 0, where, "a plain state at a cursor");
  state.has_window = table.window() != nullptr && state.kind == StateKind::kRing;
  state.window_size = state.has_window ? static_cast<int64_t>(table.window()->size()) : 0;
  state.window_keep = state.has_window ? static_cast<int64_t>(table.window()->keep()) : 0;
  const bool small = state.window_size >= 0 && state.window_size < int64_t{1} << 40 &&
                     state.window_keep >= 0 && state.window_keep < int64_t{1} << 40;
  require(small, where, "an impossible window");
  const bool ring = table.window() == nullptr || state.has_window;
  require(ring, where, "a window of a state that is no ring");
  require(!state.has_window || state.cursor >= 0, where, "a window of a state at no cursor");
  return state;
}

Cursor read_cursor(const stored::Cursor& table, const Pool& pool, const Program& program) {
  const char* where = "cursors";
  Cursor cursor{text_in(table.name()), static_cast<CursorKind>(table.kind()), -1, {}, {}};
  require(cursor.kind <= CursorKind::kLength, where, "an unknown kind");
  if (table.state().has_value()) {
    const uint32_t state = *table.state();
    const bool fits = state < program.states.size() &&
                      program.states[state].kind == StateKind::kCounter;
    require(fits, where, "it counts in no counter");
    cursor.state = static_cast<int>(state);
  }
  require((cursor.kind == CursorKind::kState) == (cursor.state >= 0), where, "a wrong counter");
  require(table.rows_kind().has_value() == table.rows().has_value(), where, "rows lack a kind");
  if (table.rows().has_value()) cursor.rows = pool.dim(*table.rows_kind(), *table.rows(), where);
  const bool limited = table.capacity().has_value();
  require(table.capacity_kind().has_value() == limited, where, "a capacity lacks its kind");
  if (limited) cursor.capacity = pool.dim(*table.capacity_kind(), *table.capacity(), where);
  return cursor;
}

// Symbols in types of states. Cursors may use no others.
void find_symbols_of_sessions(Program* program) {
  const Expressions& expressions = program->expressions;
  auto& found = program->of_sessions;
  found.assign(expressions.symbols.size(), false);
  for (const State& state : program->states) {
    for (const Dim& dim : state.type.dims) {
      expressions.each_symbol(dim, [&](uint32_t symbol) { found[symbol] = true; });
    }
  }
  for (const Cursor& cursor : program->cursors) {
    for (const auto& dim : {cursor.rows, cursor.capacity}) {
      if (!dim.has_value()) continue;
      expressions.each_symbol(*dim, [&](uint32_t symbol) {
        require(found[symbol], "cursors", "a size of no state");
      });
    }
  }
}

template <class T>
void require_unique(const std::vector<T>& all, const char* where) {
  std::vector<std::string> names;
  for (const T& one : all) names.push_back(one.name);
  std::sort(names.begin(), names.end());
  const bool unique = std::adjacent_find(names.begin(), names.end()) == names.end();
  require(unique, where, "a name is there twice");
}

}  // namespace

int Program::find_symbol(const std::string& name) const {
  const auto& symbols = expressions.symbols;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

void read_program(const stored::Program& table, Program* program) {
  const Pool pool(*table.pool(), &program->expressions);
  read_buckets(table, &program->expressions);
  read_files(table, program);
  read_blobs(*table.blobs(), program);
  read_names(*table.names(), pool, program);
  const bool few = table.states()->size() <= 10000 && table.methods()->size() <= 64;
  require(few && table.cursors()->size() <= 64, "states and methods", "there are too many");
  for (const auto* state : *table.states()) {
    program->states.push_back(read_state(*state, pool, *program));
    const int cursor = program->states.back().cursor;
    require(cursor < static_cast<int>(table.cursors()->size()), "states", "an unknown cursor");
  }
  for (const auto* cursor : *table.cursors()) {
    program->cursors.push_back(read_cursor(*cursor, pool, *program));
  }
  find_symbols_of_sessions(program);
  for (const auto* method : *table.methods()) {
    program->methods.push_back(read_method(*method, pool, *program));
  }
  require_unique(program->methods, "methods");
  require_unique(program->states, "states");
  require_unique(program->names, "named data");
  require(table.metadata_values()->size() == table.metadata_keys()->size(), "metadata",
          "values lack keys");
  for (uint32_t i = 0; i < table.metadata_keys()->size(); ++i) {
    program->metadata.emplace_back(text_in(table.metadata_keys()->Get(i)),
                                   text_in(table.metadata_values()->Get(i)));
  }
}

}  // namespace kvc::lib
