"""Find which input of a prefill or decode is its tokens, and check token ids.

In: a method of a program. Out: a check of the tokens of each call, before anything
runs. It works for models that look tokens up in a table; for others, kernels refuse
wrong tokens.
"""

from kvc.runtime.arrays import Array
from kvc.schema.control import read_control
from kvc.schema.dtypes import DType
from kvc.schema.errors import InputMismatch
from kvc.schema.frozen import frozen
from kvc.schema.model import Graph, Method, Ref
from kvc.schema.ops import DELEGATE

_CHOICE = "aten::where.self"
_LOOKUPS = ("aten::embedding", "kvc::embedding_q8")


@frozen
class TokenInput:
    """The first input of a method with a role: tokens int64 [batch, seq].

    Attributes:
        method, name: of the method and of the input, for messages.
        vocabulary: tokens are below it; None where nothing says it.
    """

    method: str
    name: str
    vocabulary: int | None

    def check(self, tokens: Array) -> None:
        """Check that every token is one of the vocabulary.

        Raises:
            InputMismatch: one is not; the message names it.
        """
        if self.vocabulary is None or tokens.size == 0:
            return
        single = tokens.size == 1
        ends = (tokens.item(),) if single else (tokens.min(), tokens.max())
        for token in map(int, ends):
            if not 0 <= token < self.vocabulary:
                raise InputMismatch(
                    method=self.method,
                    input=self.name,
                    expected=f"tokens of 0 to {self.vocabulary - 1}",
                    found=f"token {token}",
                )


def find_tokens(method: Method) -> TokenInput | None:
    """Return the input of tokens, None for a method that takes none."""
    graph = method.graph
    if not method.role or not graph.inputs:
        return None
    kind = graph.values[graph.inputs[0]].type
    if kind.dtype is not DType.INT64 or len(kind.dims) != 2:
        return None
    vocabulary = _vocabulary(method, graph, graph.inputs[0])
    return TokenInput(method.name, method.input_names[0], vocabulary)


def _vocabulary(method: Method, graph: Graph, tokens: int) -> int | None:
    """Return the rows of the first table in which a value is looked up."""
    found = _tokens_and_filled(graph, tokens)
    for call in graph.instructions:
        if call.op == DELEGATE:
            control = read_control(call.op, call.arguments)
            inside = method.blocks[control.blocks[0]].graph
            for operand, own in zip(control.operands, inside.inputs, strict=True):
                if isinstance(operand, Ref) and graph.root_of(operand.value) in found:
                    known = _vocabulary(method, inside, own)
                    if known is not None:
                        return known
        if call.op not in _LOOKUPS:
            continue
        table, indices = call.arguments[0], call.arguments[-1]
        if not isinstance(table, Ref) or not isinstance(indices, Ref):
            continue
        rows = graph.values[table.value].type.dims[0]
        if graph.root_of(indices.value) in found and isinstance(rows, int):
            return rows
    return None


def _tokens_and_filled(graph: Graph, tokens: int) -> set[int]:
    """Return the tokens, and what they are with other tokens for padding."""
    found = {tokens}
    for call in graph.instructions:
        if call.op != _CHOICE:
            continue
        operands = call.arguments[1:]
        roots = {graph.root_of(ref.value) for ref in operands if isinstance(ref, Ref)}
        if roots & found:
            found.update(call.results)
    return found
