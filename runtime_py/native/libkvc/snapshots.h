// Files of saved sessions: `runtime_py/sessions/snapshots.py` in C++, the same format.
#pragma once

#include <memory>
#include <string>

#include "state_memory.h"

namespace kvc::lib {

// Writes the states of a session. `attached` is a JSON object, or "".
void save_snapshot(const std::string& path, const Bundle& bundle, const StateMemory& memory,
                   const std::string& attached);
// The memory of a new session with the states of a file; fails as KVC_BAD_SNAPSHOT.
std::unique_ptr<StateMemory> load_snapshot(const std::string& path, Bundle& bundle);

}  // namespace kvc::lib
