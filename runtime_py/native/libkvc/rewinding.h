// Rewinds a session: `runtime_py/sessions/rewinding.py` in C++. All is checked before anything
// changes.
#pragma once

#include "state_memory.h"

namespace kvc::lib {

// Drops the last `counts` tokens of each row; fails as KVC_NOT_REWINDABLE and KVC_BAD_ARGUMENT.
void rewind(StateMemory& memory, const Rows& counts);
// How many tokens of each row can be dropped now.
Rows most_rewindable(StateMemory& memory);

}  // namespace kvc::lib
