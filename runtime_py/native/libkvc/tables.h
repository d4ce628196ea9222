// Reads the tables of a program. The bytes are hostile: FlatBuffers' verifier has accepted them,
// and every id and run is checked here before it is used.
#pragma once

#include "errors.h"
#include "program.h"
#include "program_generated.h"

namespace kvc::lib {

// A failure of a check of the program's tables.
[[noreturn]] inline void bad_program(const char* where, const char* what) {
  fail(KVC_DAMAGED, "the program's %s: %s; the file is damaged or was made to mislead", where,
       what);
}

inline void require(bool holds, const char* where, const char* what) {
  if (!holds) bad_program(where, what);
}

// Run i of a vector that `ends` cuts: [begin, end).
struct Run {
  uint32_t begin, end;
};

template <class Ends>
Run run_of(const Ends& ends, uint32_t i) {
  return {i == 0 ? 0 : ends.Get(i - 1), ends.Get(i)};
}

// Checks that ends cut `items` into `count` runs.
template <class Ends>
void check_runs(const Ends& ends, size_t count, size_t items, const char* where) {
  require(ends.size() == count, where, "a number of runs is wrong");
  uint32_t last = 0;
  for (const uint32_t end : ends) {
    require(end >= last, where, "runs do not ascend");
    last = end;
  }
  require(last == items, where, "runs do not cover their vector");
}

template <class Ids>
void check_ids(const Ids& ids, size_t count, const char* where) {
  for (const auto id : ids) {
    require(static_cast<uint64_t>(id) < count, where, "a number is out of range");
  }
}

// A text, which has to be UTF-8 without zeros.
std::string text_in(const flatbuffers::String* text);

// The table `Pool` as far as it is needed.
class Pool {
 public:
  Pool(const stored::Pool& table, Expressions* expressions);

  Dim dim(stored::DimKind kind, int64_t value, const char* where) const;
  const Type& type(uint32_t id, const char* where) const;
  std::string string(uint32_t id, const char* where) const;

 private:
  void read_expressions(const stored::Pool& table, Expressions* found) const;

  const stored::Pool& table_;
  size_t affines_;
  std::vector<Type> types_;
};

// Reads all but bound lists.
void read_program(const stored::Program& table, Program* program);
// Reads a method (method_tables.cc).
Method read_method(const stored::Method& table, const Pool& pool, const Program& program);

}  // namespace kvc::lib
