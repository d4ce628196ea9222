"""The signature that text generation expects of a method with a given role.

A method with the role encode restarts the session; its inputs and results can be
anything. Methods with the other roles take tokens int64 [batch, seq] as the first
input, and return logits.
"""

from collections.abc import Sequence
from typing import Final

from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType

ROLES: Final = ("", "encode", "prefill", "decode", "prefill_all")
SINGLE_ROLES: Final = ("encode", "decode", "prefill_all")  # one method has it, or none
TOKENS: Final = {
    "prefill": "tokens int64 [batch, seq]",
    "decode": "a token int64 [batch, 1]",
    "prefill_all": "tokens int64 [batch, seq]",
}
LOGITS: Final = {
    "prefill": "float32 [batch, vocab]",
    "decode": "float32 [batch, vocab]",
    "prefill_all": "float32 [batch, seq, vocab]",
}


def has_signature(
    role: str, taken: Sequence[TensorType], given: Sequence[TensorType], tree: str
) -> bool:
    """Tell whether a method has the signature of a role.

    Args:
        role: the role.
        taken: the types of the inputs.
        given: the types of the results.
        tree: JSON text that says how the results are nested.
    """
    if role not in TOKENS:
        return True
    if not taken or len(given) != 1 or tree != "0":
        return False
    tokens, logits = taken[0], given[0]
    if tokens.dtype is not DType.INT64 or len(tokens.dims) != 2:
        return False
    if role == "decode" and tokens.dims[1] != 1:
        return False
    places = tokens.dims if role == "prefill_all" else tokens.dims[:1]
    is_logits = logits.dtype is DType.FLOAT32 and len(logits.dims) == len(places) + 1
    return is_logits and logits.dims[:-1] == places
