"""Steps of random chains: views, operators and reads, as Python's text.

In: a source of chance, the tensor that a step takes, and other tensors. Out: an
expression. Many are refused by eager, or have no tensor of the rank that they need (an
IndexError or ValueError); these are for the caller to draw again.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of a program.

    Attributes:
        name: its name in the program.
        sizes: of its axes; None if the calls' sizes differ.
        dtype: of its elements.
    """

    name: str
    sizes: tuple[int | None, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return self.name


Chance = random.Random
Others = Sequence[Named]


def any_axis(c: Chance, t: Named) -> int:
    """Return an axis."""
    return c.randrange(len(t.sizes))


def _fixed_axis(c: Chance, t: Named) -> int:
    """Return an axis, rather one of a size that is the same in all calls."""
    fixed = [a for a, size in enumerate(t.sizes) if size is not None]
    return c.choice(fixed) if fixed and c.random() < 0.9 else any_axis(c, t)


def place_along(c: Chance, t: Named, axis: int) -> int:
    """Return an index along an axis that all calls have."""
    size = t.sizes[axis]
    return c.choice((0, -1)) if size is None else c.randrange(-size, size)


def at(axis: int, index: object) -> str:
    """Return the brackets of an index along an axis."""
    return f"[{':, ' * axis}{index}]"


def _select(c, t, others):
    a = any_axis(c, t)
    return f"{t}.select({a}, {place_along(c, t, a)})"


def _index(c, t, others):
    a = any_axis(c, t)
    return f"{t}{at(a, place_along(c, t, a))}"


def any_slice(c: Chance) -> str:
    """Return a slice."""
    start, stop = c.choice(("", "1", "-2", "-1")), c.choice(("", "", "-1", "2"))
    return f"{start}:{stop}:{c.choice(('', '2', '3'))}"


def _slice(c, t, others):
    return f"{t}{at(any_axis(c, t), any_slice(c))}"


def _narrow(c, t, others):
    a = any_axis(c, t)
    if t.sizes[a] is None:
        return f"{t}.narrow({a}, {c.choice(('0, 1', f'1, {t}.shape[{a}] - 1'))})"
    start = c.randrange(t.sizes[a])
    return f"{t}.narrow({a}, {start}, {c.randint(1, t.sizes[a] - start)})"


def _two_axes(c, t, others):
    name = c.choice(("transpose", "swapaxes", "movedim"))
    return f"{t}.{name}({any_axis(c, t)}, {any_axis(c, t) - len(t.sizes)})"


def _permute(c, t, others):
    return f"{t}.permute({c.sample(range(len(t.sizes)), len(t.sizes))})"


def _turned(c, t, others):
    return f"{t}.{c.choice(('t()', 'mT'))}"


def _unsqueeze(c, t, others):
    return f"{t}.unsqueeze({c.randint(0, len(t.sizes))})"


def _squeeze(c, t, others):
    ones = [a for a, size in enumerate(t.sizes) if size == 1]
    return f"{t}.squeeze({c.choice(ones) if ones else ''})"


def _reshape(c, t, others):
    name, n = c.choice(("reshape", "view", "reshape")), len(t.sizes)
    if c.random() < 0.3:
        return f"{t}.{name}(-1)"
    a = c.randrange(n)
    merged = c.choice((1, 2)) if n - a > 1 else 1
    split = c.choice(("-1", "1, -1", "-1, 1", "2, -1", "-1, 2", "-1, 3"))
    return f"{t}.{name}(*{t}.shape[:{a}], {split}, *{t}.shape[{a + merged}:])"


def _flatten(c, t, others):
    a = any_axis(c, t)
    return f"{t}.flatten({a}, {c.randrange(a, len(t.sizes))})"


def _unflatten(c, t, others):
    split = c.choice(("(2, -1)", "(-1, 2)", "(3, -1)", "(1, -1)"))
    return f"{t}.unflatten({any_axis(c, t)}, {split})"


def _expand(c, t, others):
    return f"{t}.expand({c.choice((1, 2))}, {', '.join(['-1'] * len(t.sizes))})"


def _like_another(c, t, others):
    return f"{t}.{c.choice(('expand_as', 'view_as'))}({c.choice(others)})"


def _part(c, t, others):
    a = _fixed_axis(c, t)
    i = c.choice((0, -1))
    return c.choice(
        (
            f"{t}.unbind({a})[{i}]",
            f"{t}.split({c.choice((1, 2))}, {a})[{i}]",
            f"{t}.chunk(2, {a})[{i}]",
            f"{t}.tensor_split(2, {a})[{i}]",
            f"{t}.tensor_split((1,), {a})[{i}]",
        )
    )


def _diagonal(c, t, others):
    one, two = c.sample(range(len(t.sizes)), 2)
    return f"{t}.diagonal({c.choice((0, 0, 1, -1))}, {one}, {two})"


def _unfold(c, t, others):
    a = _fixed_axis(c, t)
    size = c.randint(1, min(3, t.sizes[a] or 2))
    step = c.choice((size, size + 1, size, 1))
    return f"{t}.unfold({a}, {size}, {step})"


def _as_strided(c, t, others):
    sizes, strides = c.choice(
        (
            *(((2, 2), (1, 2)), ((3,), (2,)), ((2, 3), (3, 1)), ((2, 2), (6, 1))),
            *(((3, 2), (1, 3)), ((2, 2), (4, 2)), ((4,), (1,)), ((2, 2), (1, 1))),
        )
    )
    offset = c.choice(("", ", 0", ", 1", f", {t}.storage_offset() + 1"))
    return f"{t}.as_strided({sizes}, {strides}{offset})"


def _same(c, t, others):
    return c.choice(
        (
            f"{t}.detach()",
            f"torch.ops.aten.alias({t})",
            f"{t}.contiguous()",
            f"{t}.to({t}.dtype)",
            f"{t}.data",
            f"functional.dropout({t}, 0.5, training=False)",
            f"{t}.reshape({t}.shape)",
            f"{t}.view_as({t})",
        )
    )


def _bits(c, t, others):
    other = {torch.float32: torch.int32, torch.int32: torch.float32}
    return f"{t}.view({other.get(t.dtype, t.dtype)})"


VIEWS = (
    *(_select, _index, _slice, _slice, _narrow, _two_axes, _two_axes, _permute),
    *(_turned, _turned, _unsqueeze, _squeeze, _reshape, _reshape, _reshape, _flatten),
    *(_unflatten, _expand, _like_another, _part, _part, _diagonal, _unfold),
    *(_same, _same),
)
RARE_VIEWS = (_as_strided, _as_strided, _as_strided, _bits)


def view(c: Chance, t: Named, others: Others) -> str:
    """Return a view of `t`."""
    kind = c.choice(RARE_VIEWS if c.random() < 0.04 else VIEWS)
    return str(kind(c, t, others))


def made(c: Chance, t: Named, others: Others) -> str:
    """Return an operator's result of `t`, in memory of its own."""
    a, y = c.randrange(max(1, len(t.sizes))), c.choice(others)
    small, other = f"{t}.clamp(-3, 3)", f"{y}.clamp(-3, 3)"
    softmax = f"{t}.to(torch.float32).softmax({a}).mul_(8).floor_()"
    return c.choice(
        (
            f"{t} * 2",
            f"{t}.roll(1, {a})",
            f"{t}.flip({a})",
            softmax,
            f"{small}.t() @ {other}",
            f"{small} @ {other}.mT",
            f"torch.baddbmm({t}, {small}, {other}.mT @ {small})",
            f"torch.bmm({small}, {other}.mT)",
            f"{t}.clone()",
            f"{t} + {y}",
            f"torch.cat([{t}, {t}], {a})",
            f"torch.stack([{t}, {t} + 1], {a})",
            f"torch.where({t} > 1, {t}, -{t})",
            f"{t}.sort({a}).values",
            f"functional.pad({t}, (1, 1))",
            f"{t}.mT.contiguous().mT",
            f"torch.zeros_like({t})",
            f"{t}.to(torch.int64)",
            f"{t}.repeat_interleave(2, {a})",
            f"{small}.cumsum({a})",
            f"{t}.clone(memory_format=torch.contiguous_format)",
        )
    )


def read(c: Chance, t: Named) -> str:
    """Return what is read of `t`."""
    ways = (f"{t}.clone()", f"{t} + 1", f"{t}.reshape(-1)[:3] * 2", f"-{t}")
    return f"{t}.clone()" if t.dtype is torch.int32 else c.choice(ways)
