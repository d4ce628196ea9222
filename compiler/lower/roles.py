"""Check the roles of methods against the traced types."""

from kvc.compiler.ir import Method, Program
from kvc.schema.errors import CompileError
from kvc.schema.roles import LOGITS, TOKENS, has_signature


def check_roles(program: Program) -> None:
    """Check that every method with a role has the role's signature.

    Raises:
        CompileError: with the signature that was expected and the one found.
    """
    for method in program.methods:
        taken, given = ([v.type for v in vs] for vs in (method.inputs, method.outputs))
        if not has_signature(method.role, taken, given, method.output_tree):
            raise CompileError(message=_mismatch(method))


def _mismatch(method: Method) -> str:
    inputs = zip(method.input_names, method.inputs, strict=True)
    taken = ", ".join(f"{name}: {value.type}" for name, value in inputs)
    return (
        f"method {method.name} has the role {method.role}, which expects "
        f"{TOKENS[method.role]} as the first input and one tensor of logits "
        f"{LOGITS[method.role]} as the result; found ({taken}) -> {_results(method)}. "
        "Change the method, or leave the role out"
    )


def _results(method: Method) -> str:
    types = ", ".join(str(value.type) for value in method.outputs) or "nothing"
    return types if method.output_tree == "0" else f"({types}) in a container"
