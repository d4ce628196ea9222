// `runtime_py/sessions/sizes.py` in C++.
#include <algorithm>

#include "errors.h"
#include "state_memory.h"

namespace kvc::lib {
namespace {

bool is_linear(const State& state) {
  return state.kind == StateKind::kLinear && state.at_position();
}

int batch_symbol(const Program& program) {
  const int found = program.find_symbol("batch");
  const bool own = found >= 0 && program.of_sessions[static_cast<size_t>(found)];
  return own ? found : -1;
}

// The greatest position that caches and the cursor allow, -1 for any.
int64_t position_limit(const Program& program, const Sizes& sizes) {
  int64_t least = -1;
  const auto take = [&](Dim dim) {
    const int64_t limit = program.evaluate(dim, sizes);
    least = least < 0 ? limit : std::min(least, limit);
  };
  if (program.cursors[0].capacity) take(*program.cursors[0].capacity);
  for (const State& state : program.states) {
    if (state.cursor != 0 || !is_linear(state)) continue;
    take(state.type.dims[static_cast<size_t>(state.axis)]);
  }
  return least;
}

void bad_size(const std::string& name, const std::string& expected, int64_t found) {
  fail(KVC_BAD_ARGUMENT, "%s: expected %s, found %lld", shown(name).c_str(), expected.c_str(),
       static_cast<long long>(found));
}

int64_t choose_size(const Symbol& symbol, int64_t wanted, bool batch, bool capacity) {
  const int64_t least = batch || capacity ? std::max<int64_t>(1, symbol.lower) : symbol.lower;
  const int64_t fallback = batch ? std::max<int64_t>(1, symbol.lower) : symbol.greatest();
  const int64_t size = wanted == kUnknown ? fallback : wanted;
  if (size < (capacity ? least : symbol.lower) || size > symbol.greatest()) {
    const std::string range = std::to_string(capacity ? least : symbol.lower) + ".." +
                              std::to_string(symbol.greatest());
    bad_size(symbol.name, range, size);
  }
  if (batch && wanted != kUnknown && !symbol.takes(size)) {
    bad_size(symbol.name, symbol.allowed(), size);
  }
  const auto bucket = std::lower_bound(symbol.buckets.begin(), symbol.buckets.end(), size);
  return bucket == symbol.buckets.end() ? size : *bucket;
}

}  // namespace

int capacity_symbol(const Program& program) {
  const int named = program.find_symbol("capacity");
  if (named >= 0 && program.of_sessions[static_cast<size_t>(named)]) return named;
  if (program.cursors.empty() || !program.cursors[0].capacity) return -1;
  const int found = program.expressions.only_symbol(*program.cursors[0].capacity);
  return found >= 0 && program.of_sessions[static_cast<size_t>(found)] ? found : -1;
}

Sizes choose_sizes(const Program& program, const Sizes& given, int64_t capacity) {
  const auto& symbols = program.expressions.symbols;
  const int named = capacity_symbol(program), batch = batch_symbol(program);
  Sizes wanted = given, found(symbols.size(), kUnknown);
  if (capacity >= 0 && named >= 0) {
    if (wanted[static_cast<size_t>(named)] != kUnknown) {
      fail(KVC_BAD_ARGUMENT, "capacity: expected one size; the symbol %s is the capacity too",
           shown(symbols[static_cast<size_t>(named)].name).c_str());
    }
    wanted[static_cast<size_t>(named)] = capacity;
  }
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (program.of_sessions[i]) {
      const int number = static_cast<int>(i);
      found[i] = choose_size(symbols[i], wanted[i], number == batch, number == named);
    } else if (wanted[i] != kUnknown) {
      fail(KVC_UNKNOWN_NAME, "the size %s is not one that sessions fix",
           shown(symbols[i].name).c_str());
    }
  }
  return found;
}

int64_t choose_capacity(const Program& program, const Sizes& sizes, int64_t capacity) {
  const int named = capacity_symbol(program);
  if (program.cursors.empty()) {
    if (capacity >= 0 && named < 0) {
      fail(KVC_UNKNOWN_NAME, "capacity: sessions of this bundle have none, since no state counts "
           "tokens");
    }
    return named < 0 ? -1 : sizes[static_cast<size_t>(named)];
  }
  const int64_t limit = position_limit(program, sizes);
  if (capacity < 0 || named >= 0) return limit >= 0 ? limit : capacity;
  if (capacity < 1 || (limit >= 0 && capacity > limit)) {
    bad_size("capacity", limit < 0 ? "1 or more" : "1.." + std::to_string(limit), capacity);
  }
  return capacity;
}

size_t count_rows(const Program& program, const Sizes& sizes, int number) {
  const Cursor* cursor = static_cast<size_t>(number) < program.cursors.size()
                             ? &program.cursors[static_cast<size_t>(number)]
                             : nullptr;
  const bool counted = cursor != nullptr && cursor->kind == CursorKind::kSession;
  const int batch = batch_symbol(program);
  int64_t rows = 1;
  if (counted && cursor->rows) {
    rows = program.evaluate(*cursor->rows, sizes);
  } else if (batch >= 0) {
    rows = sizes[static_cast<size_t>(batch)];
  } else if (!counted) {
    for (const State& state : program.states) {
      if (state.kind != StateKind::kAppend || state.axis == 0) continue;
      rows = program.evaluate(state.type.dims[0], sizes);
      break;
    }
  }
  if (rows < 0 || rows > 1 << 20) fail(KVC_DAMAGED, "a session has an impossible number of rows");
  return static_cast<size_t>(rows);
}

bool has_rows(const Program& program, const State& state) {
  if (state.axis == 0 || state.type.dims.empty()) return false;
  const size_t number = state.cursor < 0 ? 0 : static_cast<size_t>(state.cursor);
  const Dim own = state.type.dims[0];
  if (number < program.cursors.size()) {
    const Cursor& cursor = program.cursors[number];
    if (cursor.state >= 0) {
      const auto& dims = program.states[static_cast<size_t>(cursor.state)].type.dims;
      return !dims.empty() && dims[0] == own;
    }
    if (cursor.rows) return *cursor.rows == own;
  }
  const int batch = batch_symbol(program);
  return batch >= 0 && program.expressions.only_symbol(own) == batch;
}

bool takes_one_position(const Program& program, const Method& method, int number) {
  const Cursor& cursor = program.cursors[static_cast<size_t>(number)];
  const bool known = cursor.rows.has_value() || cursor.state >= 0;
  std::vector<Dim> rows;
  if (cursor.rows) rows = {*cursor.rows};
  if (cursor.state >= 0) rows = program.states[static_cast<size_t>(cursor.state)].type.dims;
  const std::vector<Dim> one = {Dim{false, 1}};
  for (const CursorValue& value : method.cursor_values) {
    if (value.cursor != number) continue;
    const bool single = value.dims.empty() || value.dims == one;
    const bool start = value.field == CursorField::kStart && single && value.dims != rows;
    if (!known || value.field == CursorField::kPlaces || start) return true;
  }
  return false;
}

}  // namespace kvc::lib
