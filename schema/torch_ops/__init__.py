"""Definitions of kvc's own operators in torch.

Importing this package registers `kvc::cache_update`, `kvc::attention`,
`kvc::expert_linear`, `kvc::adapted` and `kvc::quantize_cache` with torch. The compiler
imports the package; the runtime's torch kernels import it when they first need a
function. Compiler and runtime call the same functions, so that eager, traced and
run-time results agree bit for bit.
No other module of `kvc.schema` imports torch.
"""

from kvc.schema.torch_ops.adapted import adapt_into, adapted
from kvc.schema.torch_ops.attention import attend_into, attention
from kvc.schema.torch_ops.cache_update import cache_update, write_cache, write_rows
from kvc.schema.torch_ops.experts import (
    expert_linear,
    multiply_by_experts,
    rows_by_expert,
)
from kvc.schema.torch_ops.int8_rows import (
    multiply_int8,
    quantize_cache,
    quantize_into,
)

__all__ = [
    "adapt_into",
    "adapted",
    "attend_into",
    "attention",
    "cache_update",
    "expert_linear",
    "multiply_by_experts",
    "multiply_int8",
    "quantize_cache",
    "quantize_into",
    "rows_by_expert",
    "write_cache",
    "write_rows",
]
