"""A `Step`: an instruction that becomes nodes of ONNX, with methods to add nodes.

In: an emitter, and the names of operands. Out: nodes. The nodes of attention are here
too, since several operators need them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from kvc.runtime.delegates.qnn import curves
from kvc.runtime.delegates.qnn.emitting import Emitter, Shape
from kvc.runtime.delegates.qnn.ranges import HIDING, Reach
from kvc.schema.frozen import frozen

Made = str | list[str]
_SHARES: Final = 1.25  # bound of a softmax's sum, whose terms are rounded


@frozen
class Step:
    """An instruction that is being translated.

    Attributes:
        emitter: collects the nodes of the model.
        read: takes an operand, and returns the device's name of it.
        names: names for the instruction's results.
        shapes: shapes of the instruction's results.
        weight: takes a constant and whether to transpose it, and returns its name.
        channels: takes an int8 matrix and its scales, and returns the name of the
            transposed matrix.
        scores: the range of an attention's scores, on integers.
    """

    emitter: Emitter
    read: Callable[[object], str]
    names: Sequence[str]
    shapes: Sequence[Shape]
    weight: Callable[[object, bool], str]
    channels: Callable[[object, object], str] | None = None
    scores: Reach | None = None

    @property
    def name(self) -> str:
        """Return the name for the instruction's only result."""
        return self.names[0]

    @property
    def shape(self) -> Shape:
        """Return the shape of the instruction's only result."""
        return self.shapes[0]

    def shape_of(self, name: str) -> Shape:
        """Return the shape of a named tensor."""
        return self.emitter.shapes[name]

    def node(
        self,
        op: str,
        *inputs: str,
        part: str = "",
        shape: Shape | None = None,
        reach: Reach | None = None,
        like: str = "",
        row_sum: float = math.inf,
    ) -> str:
        """Add a node for the instruction's result, or for its intermediate `part`."""
        output = f"{self.name}_{part}" if part else self.name
        made = self.shape if shape is None else shape
        return self.emitter.node(
            op, inputs, output, made, reach=reach, like=like, row_sum=row_sum
        )

    def number(self, part: str, value: float) -> str:
        """Add a number as a constant, and return its name."""
        return self.emitter.number(f"{self.name}_{part}", value)

    def widened(self, name: str, rank: int, part: str) -> str:
        """Add axes of size 1 in front of a tensor, until it has `rank` axes."""
        shape = self.shape_of(name)
        wide = (*(1,) * (rank - len(shape)), *shape)
        return self.emitter.reshape(name, f"{self.name}_{part}", wide)

    def attend(
        self,
        q: str,
        sizes: Shape,
        content: tuple[str, str],
        groups: int,
        columns: int,
        scale: float,
        softcap: float | None,
        bias: str | None,
        seeing: str | None,
    ) -> str:
        """Add the nodes of an attention.

        Args:
            q: name of the queries, [batch, heads, queries, width].
            sizes: the shape of `q`.
            content: names of keys and values, [batch, groups, columns, ...].
            groups: the number of key heads, each shared by neighboring query heads.
            columns: the number of keys.
            scale: factor on the scores.
            softcap: as in `kvc::attention`.
            bias: name of the numbers to add to scores, [batch, heads, queries,
                columns]; None to add nothing.
            seeing: name of a factor on the attention weights of each query; None for no
                factor.
        """
        batch, heads, queries, width = sizes
        keys, values = content
        rows = heads // groups * queries
        emitter, name = self.emitter, self.name
        x = self.node("Mul", q, self.number("scale", scale), part="scaled", shape=sizes)
        x = emitter.reshape(x, f"{name}_grouped", (batch, groups, rows, width))
        turned = (batch, groups, width, columns)
        y = emitter.node(
            "Transpose", (keys,), f"{name}_keys", turned, perm=(0, 1, 3, 2)
        )
        grouped = (batch, groups, rows, columns)
        x = self.node("MatMul", x, y, part="products", shape=grouped, reach=self.scores)
        apart = (batch, heads, queries, columns)
        x = emitter.reshape(x, f"{name}_scores", apart)
        if softcap is not None:
            x = self._capped(x, softcap, apart)
        if bias is not None:
            seen = emitter.reach(x)
            far = None if seen is None else (seen[0] - HIDING, seen[1])
            x = self.node("Add", x, bias, part="biased", shape=apart, reach=far)
        x = self.softmax(x, f"{name}_weights", seeing)
        x = emitter.reshape(x, f"{name}_shares", grouped)
        mixed = (batch, groups, rows, self.shape[-1])
        x = self.node(
            "MatMul", x, values, part="mixed", shape=mixed, like=name, row_sum=_SHARES
        )
        return emitter.reshape(x, name, self.shape)

    def softmax(self, x: str, output: str, seeing: str | None = None) -> str:
        """Add a softmax along the last axis, with a factor [..., 1] or without one.

        The factor is applied to the softmax, not to its products with the values: for
        the latter model, the library builds a program that crashes.
        """
        emitter, shape = self.emitter, self.shape_of(x)
        if not emitter.is_fixed:
            return curves.softmax(emitter, x, output, seeing)
        if seeing is None:
            return emitter.node("Softmax", (x,), output, shape, axis=-1)
        y = emitter.node("Softmax", (x,), f"{output}_all", shape, axis=-1)
        return emitter.node("Mul", (y, seeing), output, shape)

    def _capped(self, x: str, softcap: float, shape: Shape) -> str:
        cap = self.number("cap", softcap)
        x = self.emitter.divided(x, softcap, f"{self.name}_over", shape)
        x = self.node("Tanh", x, part="tanh", shape=shape)
        return self.node("Mul", x, cap, part="capped", shape=shape)
