// Contracts that do not stand beside their kernels, which have long files.
#pragma once

#include "contracts.h"

namespace kvc {

// indices_contracts.cc
bool embedded(Check& check);
bool embedded_q8(Check& check);
bool index_selected(Check& check);
bool slices_written(Check& check);
bool slices_added(Check& check);
bool gathered(Check& check);
bool elements_scattered(Check& check);
bool value_scattered(Check& check);
bool elements_added(Check& check);
bool elements_reduced(Check& check);
bool indexed(Check& check);
bool put_at_indices(Check& check);

// quantized_contracts.cc
bool rows_quantized(Check& check);
bool blocks_quantized(Check& check);
bool quantized_rows_multiplied(Check& check);
bool quantized_blocks_multiplied(Check& check);
bool rows_quantized_and_multiplied(Check& check);
bool quantized_rows_multiplied_by_experts(Check& check);
bool quantized_blocks_multiplied_by_experts(Check& check);

// attention_contracts.cc
bool attended(Check& check);
bool plainly_attended(Check& check);

// convolution_contracts.cc
bool convolved(Check& check);
bool convolved_and_ended(Check& check);
bool convolved_with_int8(Check& check);
bool transposed_convolved(Check& check);
bool transposed_convolved_with_int8(Check& check);
bool convolved_twice(Check& check);
bool convolved_twice_with_int8(Check& check);

}  // namespace kvc
