"""Check the roles of methods against the traced types.

A role promises a signature to generation: tokens int64 [batch, seq] (seq 1 for decode)
in; logits out, float32 [batch, vocab] or, for prefill_all, those of every position,
float32 [batch, seq, vocab]. The role encode promises that a session begins anew with
the method, which may take and return anything.
"""

from typing import Final

from kvc.compiler.ir import Method, Program
from kvc.schema.dtypes import DType
from kvc.schema.errors import CompileError

_TOKENS: Final = {
    "prefill": "tokens int64 [batch, seq]",
    "decode": "a token int64 [batch, 1]",
    "prefill_all": "tokens int64 [batch, seq]",
}
_LOGITS: Final = {
    "prefill": "float32 [batch, vocab]",
    "decode": "float32 [batch, vocab]",
    "prefill_all": "float32 [batch, seq, vocab]",
}


def check_roles(program: Program) -> None:
    """Check that every method with a role has the role's signature.

    Raises:
        CompileError: with the signature that was expected and the one found.
    """
    for method in program.methods:
        if method.role not in _LOGITS:
            continue
        if not (_takes_tokens(method) and _gives_logits(method)):
            raise CompileError(message=_mismatch(method))


def _takes_tokens(method: Method) -> bool:
    if not method.inputs:
        return False
    tokens = method.inputs[0].type
    is_tokens = tokens.dtype is DType.INT64 and len(tokens.dims) == 2
    return is_tokens and (method.role != "decode" or tokens.dims[1] == 1)


def _gives_logits(method: Method) -> bool:
    if len(method.outputs) != 1 or method.output_tree != "0":
        return False
    logits, tokens = method.outputs[0].type, method.inputs[0].type
    rows = tokens.dims if method.role == "prefill_all" else tokens.dims[:1]
    is_logits = logits.dtype is DType.FLOAT32 and len(logits.dims) == len(rows) + 1
    return is_logits and logits.dims[:-1] == rows


def _mismatch(method: Method) -> str:
    inputs = zip(method.input_names, method.inputs, strict=True)
    taken = ", ".join(f"{name}: {value.type}" for name, value in inputs)
    return (
        f"method {method.name} has the role {method.role}, which expects "
        f"{_TOKENS[method.role]} as the first input and one tensor of logits "
        f"{_LOGITS[method.role]} as the result; found ({taken}) -> {_results(method)}. "
        "Change the method, or leave the role out"
    )


def _results(method: Method) -> str:
    types = ", ".join(str(value.type) for value in method.outputs) or "nothing"
    return types if method.output_tree == "0" else f"({types}) in a container"
