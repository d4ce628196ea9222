// Which instruction set the kernels use: at first the best that there is.
#pragma once

namespace kvc {

// Names of those that this library has been compiled for and that this processor has,
// least first, each with a space after it; none where it was compiled for others alone.
const char* processors();

// Makes kernels use one of them from now on; false where it is none of them.
bool use_processor(const char* name);

}  // namespace kvc
