"""Read torch's higher-order operators: their bodies and operands.

In: a traced call of `torch.cond`, `while_loop`, `scan` or `map`. Out: the corresponding
operator of kvc, the bodies of the call, and the operands in kvc's order. A map becomes
a scan without carried values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from kvc.compiler.ingest.calls import Unsupported
from kvc.compiler.ir import Argument, Value
from kvc.schema.ops import COND, SCAN, WHILE

_NAMES = {"cond": COND, "while_loop": WHILE, "scan": SCAN, "map_impl": SCAN}


@dataclass(frozen=True, slots=True)
class Higher:
    """A call of a higher-order operator.

    Attributes:
        op: the operator of kvc.
        bodies: the fx nodes of the bodies, in kvc's order.
        pred: the condition of a cond; None for other operators.
        operands: the operands that each body takes, in order: the carried operands,
            the scanned operands, then the others.
        carried: the number of carried operands.
        scanned: the number of scanned operands.
    """

    op: str
    bodies: tuple[fx.Node, ...]
    pred: object
    operands: tuple[object, ...]
    carried: int
    scanned: int

    @property
    def kept(self) -> int:
        """Return the number of carried and scanned operands.

        These operands must be passed even if they are weights.
        """
        return self.carried + self.scanned

    def arguments(
        self,
        pred: Value | None,
        blocks: tuple[int, ...],
        operands: tuple[Value, ...],
        results: int,
    ) -> tuple[Argument, ...]:
        """Return the arguments of kvc's operator.

        `results` is the number of results of the operator.
        """
        over: tuple[Argument, ...] = (operands, (None,) * results)
        if self.op == COND:
            return (pred, *blocks, *over)
        if self.op == WHILE:
            return (*blocks, self.carried, *over)
        return (*blocks, self.carried, self.scanned, *over)


def higher_call(node: fx.Node) -> Higher:
    """Read a traced call of a higher-order operator.

    Raises:
        Unsupported: kvc has no such operator.
    """
    assert isinstance(node.target, torch._ops.HigherOrderOperator)
    name: str = node.target.name()  # type: ignore[no-untyped-call]
    op = _NAMES.get(name)
    if op is None:
        raise Unsupported("a higher-order op that kvc does not have")
    if name == "cond":
        pred, yes, no, passed = node.args
        return Higher(op, _bodies(yes, no), pred, _items(passed), 0, 0)
    if name == "while_loop":
        test, body, carried, rest = node.args
        first = _items(carried)
        all_of_them = (*first, *_items(rest))
        return Higher(op, _bodies(test, body), None, all_of_them, len(first), 0)
    body, *init, through, rest = node.args  # a map has no initial values
    first = _items(init[0]) if init else ()
    second = _items(through)
    operands = (*first, *second, *_items(rest))
    return Higher(op, _bodies(body), None, operands, len(first), len(second))


def op_name(target: torch._ops.OpOverload) -> str:
    """Return an operator's full name, without `.default`."""
    name: str = target.name()  # type: ignore[no-untyped-call]
    return name.removesuffix(".default")


def _bodies(*nodes: object) -> tuple[fx.Node, ...]:
    found = tuple(node for node in nodes if isinstance(node, fx.Node))
    assert len(found) == len(nodes), "bodies are attributes of the traced module"
    return found


def _items(raw: object) -> tuple[object, ...]:
    assert isinstance(raw, Sequence)
    return tuple(raw)
