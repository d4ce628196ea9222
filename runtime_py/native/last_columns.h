// The last outputs of a plane that would leave most lanes of a register empty.
#pragma once

#include "convolutions.h"

namespace kvc {

// How many outputs of a convolution whose outputs read one element of each channel, along one
// axis, are made by `multiply_last`; the same for all instruction sets.
int64_t last_columns(const Convolution& c, const WindowAxis (&axes)[kAxes]);

// Rows `begin` to `end` of the weights of a group times the last `count` columns of an image, whose
// elements are `stride` apart. False where a thread has no memory.
bool multiply_last(const Convolution& c, int64_t image, int64_t group, int64_t begin, int64_t end,
                   int64_t count, int64_t stride, const Context& context);

}  // namespace kvc
