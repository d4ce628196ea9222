// A step that is a call of another library, which has been made ready for it.
#include "kernels.h"

namespace kvc {
namespace {

// Integers: the address of a function that takes a handle and returns 0 for success; the
// address of where the handle stands, since it may be another one in a later run.
bool call(const Step& step, const Context& context) {
  using Function = int32_t (*)(void*);
  const auto function = reinterpret_cast<Function>(step.integers[0]);
  const int32_t status = function(*reinterpret_cast<void**>(step.integers[1]));
  return status == 0 || context.refuse(Fault::kLibraryFailed, status);
}

}  // namespace

const Entry kLibraries[] = {{"call", call}, {nullptr, nullptr}};

}  // namespace kvc
