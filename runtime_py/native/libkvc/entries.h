// What is known of a method before any call: `runtime_py/calls/entries.py` in C++.
#pragma once

#include <vector>

#include "program.h"
#include "state_kind.h"

namespace kvc::lib {

// The length that a method gives a growing state, and the greatest meanwhile.
struct Growth {
  int state;
  Dim length;
  std::vector<Dim> reach;
};

struct MethodEntry {
  int id;
  const Method* method;
  int cursor = 0;        // that it advances; one with row lengths, if there is one
  int row_lengths = -1;  // the input of them
  bool takes_tokens = false;  // its only inputs are tokens and perhaps row lengths, and all its
                              // cursors advance by the tokens
  bool only_reads = false;    // a call never changes its session
  bool restarts = false;      // a call resets the session first
  int needs_cursor = -1;      // an encoder's cursor, which must have advanced
  int encoder = -1;           // by this method
  std::vector<StateWrites> writes;
  std::vector<Growth> growth;
};

std::vector<MethodEntry> make_entries(const Program& program);

}  // namespace kvc::lib
