// Steps that are calls of another library, which has been made ready for them.
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

// What a library is asked about its last run; `Question` in __init__.py.
struct Question {
  int32_t (*ask)(void* handle, int32_t what, size_t nbytes, void* answer, size_t* needed);
  void** handle;  // where it stands
  int64_t what;
  size_t nbytes;  // of the answer
  void* answer;   // null where nobody wants it
  size_t needed;
  int64_t status;  // of the last time, 0 for success
};

// Integers: the address of a question, which is asked while somebody records.
bool ask(const Step& step, const Context& context) {
  auto& question = *reinterpret_cast<Question*>(step.integers[0]);
  if (context.recorded && question.answer != nullptr) {
    question.status = question.ask(*question.handle, static_cast<int32_t>(question.what),
                                   question.nbytes, question.answer, &question.needed);
  }
  return true;
}

}  // namespace

const Entry kLibraries[] = {
    {"call", call, never_from_files},
    {"ask", ask, never_from_files},
    {nullptr, nullptr, nullptr},
};

}  // namespace kvc
