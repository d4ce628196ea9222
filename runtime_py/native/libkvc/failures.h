// The errors of steps whose kernels refused.
#pragma once

#include <string>

#include "../kernels.h"

namespace kvc::lib {

// Throws the error of a failed step of a method.
[[noreturn]] void refuse_step(const std::string& method, const Failure& failure);

}  // namespace kvc::lib
