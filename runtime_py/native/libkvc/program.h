// What a program says of its states, cursors and methods, read from its tables. Instructions are
// left out: bound lists are what is run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "expressions.h"
#include "sha256.h"

namespace kvc::lib {

enum class StateKind : uint8_t { kPlain, kLinear, kRing, kAppend, kCounter };
enum class CursorKind : uint8_t { kState, kSession, kLength };
enum class CursorField : uint8_t { kStart, kEnd, kLengths, kPlaces };
enum class AccessMode : uint8_t { kAnywhere, kSlots, kAppend, kReplace };

struct State {
  std::string name;
  Type type;
  StateKind kind;
  int axis;  // the sequence axis, or -1
  std::vector<int> layout;
  int initial;  // id of the named data, -1 for zeros
  bool kept;    // by a reset
  int cursor;   // or -1
  bool has_window;
  int64_t window_size, window_keep;

  bool at_position() const { return cursor >= 0 && kind != StateKind::kCounter; }
};

struct Cursor {
  std::string name;
  CursorKind kind;
  int state;  // the counter, or -1
  std::optional<Dim> rows, capacity;
};

struct Advance {
  int cursor;
  std::optional<Dim> tokens;  // none: the counter says it afterwards
  int lengths;                // the input with row lengths, or -1
};

// A write of a state.
struct Write {
  int state;
  AccessMode mode;
  Dim size;
};

struct Input {
  std::string name;
  Type type;
  bool borrowed;  // lies in the caller's array; such methods have no bound lists
};

// A value that is a field of a cursor.
struct CursorValue {
  int cursor;
  CursorField field;
  std::vector<Dim> dims;
};

// The length along its axis that a method expects of a growing state.
struct Slot {
  int state;
  Dim length;
};

struct Method {
  std::string name, role;
  std::vector<Input> inputs;
  std::vector<Type> outputs;
  std::vector<int> writes;  // ids of states
  std::vector<Advance> advances;
  std::vector<Write> written;
  std::vector<Slot> slots;
  std::vector<int> states_read;  // ids of all states among its values
  std::vector<CursorValue> cursor_values;
  bool adapts;

  const Advance* advance_of(int cursor) const {
    for (const Advance& one : advances) {
      if (one.cursor == cursor) return &one;
    }
    return nullptr;
  }
};

struct Blob {
  Digest digest;
  uint64_t nbytes, offset;
  uint32_t file, align;
};

struct NamedData {
  std::string name, format;
  uint32_t blob;
  Type type;
};

struct DataFile {
  std::string name;
  Digest digest;
};

struct Program {
  Expressions expressions;
  std::vector<DataFile> files;
  std::vector<Blob> blobs;
  std::vector<NamedData> names;
  std::vector<State> states;
  std::vector<Cursor> cursors;
  std::vector<Method> methods;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<bool> of_sessions;  // symbols whose sizes a session fixes

  int64_t evaluate(Dim dim, const Sizes& sizes) const { return expressions.evaluate(dim, sizes); }
  int find_symbol(const std::string& name) const;
};

}  // namespace kvc::lib
