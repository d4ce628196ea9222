// Rows that are made where they are read: by ops of their own, and by products.
#pragma once

#include <cstdint>

namespace kvc {

// y = activation(gate) * up; of activations 0 is silu, 1 gelu, 2 gelu by tanh. y may be
// either of both.
void gate_row(int64_t activation, const float* gate, const float* up, int64_t n, float* y);

// y = x / sqrt(mean(x^2) + eps) * weight, if there is one. y may be x.
void norm_row(const float* x, const float* weight, float eps, int64_t n, float* y);

// What an argument of `aten::rms_norm` says, NaN where it is left out.
float norm_eps(double given);

}  // namespace kvc
