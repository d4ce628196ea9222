"""Writes of random chains, as Python's text.

In: a source of chance, the tensor to write through, and other tensors. Out: a
statement, and what it writes and reads. What eager refuses, and what has no tensor of
the rank that it needs (an IndexError or ValueError), is for the caller to draw again.
"""

from dataclasses import dataclass

import torch
from chain_steps import Chance, Named, Others, any_axis, any_slice, at, place_along

BITS = (0, 0x3F800000, 0x40000000)  # of 0.0, 1.0 and 2.0


@dataclass(frozen=True, slots=True)
class Write:
    """A statement that writes.

    Attributes:
        text: the statement.
        target: the expression of the elements that it writes.
        sources: expressions of the tensors that it reads.
        elementwise: whether each written element depends on no more than the elements
            of the sources at its own place.
    """

    text: str
    target: str
    sources: tuple[str, ...] = ()
    elementwise: bool = True


def _number(c: Chance, v: Named) -> str:
    return str(c.choice(BITS) if v.dtype is torch.int32 else c.choice((0, 1, 5, -2, 3)))


def _operand(c: Chance, v: Named, others: Others) -> tuple[str, tuple[str, ...]]:
    """Return a tensor of the shape of `v`, and the tensors that it is a view of."""
    alike = [t for t in others if t.sizes == v.sizes and t.dtype == v.dtype]
    alike = [t for t in alike if t.name != v.name] or alike[c.randrange(8) :]
    if alike and c.random() < 0.7:
        name = str(c.choice(alike))
        return name, (name,)
    if v.dtype is torch.int32:
        return f"torch.full_like({v}, {_number(c, v)})", ()
    total = f"{c.choice(others)}.clamp(-9, 9).sum().to({v}.dtype)"
    axis = c.randrange(max(1, len(v.sizes)))
    ways = (
        f"({v} + 1)",
        f"torch.full_like({v}, {_number(c, v)})",
        f"torch.ones_like({v}).cumsum({axis}).to({v}.dtype)",
        f"{total}.expand({v}.shape)",
    )
    return c.choice(ways), ()


def _number_write(c, v, others):
    n = _number(c, v)
    names = ("fill_({})", "zero_()", "masked_fill_({v} > 0, {})")
    arithmetic = (
        *("add_({})", "mul_(2)", "mul_(-1)", "clamp_(-2, 5)", "neg_()", "relu_()"),
        *("sub_(3)", "clamp_(max={})"),
    )
    some = names if v.dtype is torch.int32 else names + arithmetic
    return Write(f"{v}.{c.choice(some).format(n, v=v)}", f"{v}")


def _tensor_write(c, v, others):
    y, sources = _operand(c, v, others)
    names = ("copy_",) if v.dtype is torch.int32 else ("copy_", "add_", "sub_", "copy_")
    return Write(f"{v}.{c.choice(names)}({y})", f"{v}", sources)


def _indices(c: Chance, v: Named, axis: int, repeats: bool = False) -> list[int]:
    size = v.sizes[axis]
    if size is None:
        return [c.choice((0, -1))]
    count = c.randint(1, min(3, size))
    if repeats:
        return c.choices(range(size), k=count + 1)
    return [c.choice((i, i - size)) for i in c.sample(range(size), count)]


def _index_method(c, v, others):
    a = any_axis(c, v)
    name = c.choice(("index_copy_", "index_add_", "index_fill_"))
    repeats = name == "index_add_"
    places = [i % size if (size := v.sizes[a]) else 0 for i in _indices(c, v, a)]
    if repeats and v.sizes[a]:
        places = _indices(c, v, a, repeats=True)
    index = f"torch.tensor({places})"
    if name == "index_fill_":
        return Write(f"{v}.{name}({a}, {index}, {_number(c, v)})", f"{v}")
    y, _ = _operand(c, v, others)
    source = f"{y}.index_select({a}, {index})"  # a copy
    return Write(f"{v}.{name}({a}, {index}, {source})", f"{v}", ())


def _index_put(c, v, others):
    count = c.randint(1, len(v.sizes))
    accumulate = c.random() < 0.5
    rows = [_indices(c, v, a, repeats=accumulate) for a in range(count)]
    least = min(len(row) for row in rows)
    rows = [row[:least] for row in rows]
    if c.random() < 0.3 and count == 2:
        rows[0] = [[i] for i in rows[0]]
    indices = ", ".join(f"torch.tensor({row})" for row in rows)
    value = f"torch.tensor({_number(c, v)}, dtype={v.dtype})"
    return Write(f"{v}.index_put_(({indices},), {value}, {accumulate})", f"{v}")


def _advanced(c, v, others):
    a = any_axis(c, v)
    place = f"{v}{at(a, f'torch.tensor({_indices(c, v, a)})')}"
    return Write(f"{place} {c.choice(('=', '+='))} {_number(c, v)}", f"{v}")


def _scatter(c, v, others):
    a = any_axis(c, v)
    index = f"torch.zeros_like({v}, dtype=torch.int64).narrow({a}, 0, 1)"
    y, sources = _operand(c, v, others)
    name = c.choice(("scatter_", "scatter_add_", "scatter_"))
    value = f"{y}.clone()" if sources else y
    if name == "scatter_" and c.random() < 0.4:
        value = _number(c, v)
    return Write(f"{v}.{name}({a}, {index}, {value})", f"{v}")


def _mask(c, v, others):
    return Write(f"{v}[{v} > {c.choice((0, 1, 2))}] = {_number(c, v)}", f"{v}")


def _set_part(c, v, others):
    a = any_axis(c, v)
    index = place_along(c, v, a) if c.random() < 0.5 else any_slice(c)
    part = f"{v}{at(a, index)}"
    if c.random() < 0.5:
        return Write(f"{part} {c.choice(('=', '+='))} {_number(c, v)}", part)
    y, sources = _operand(c, v, others)
    same = tuple(f"{one}{at(a, index)}" for one in sources)
    return Write(f"{part} {c.choice(('=', '+='))} {y}{at(a, index)}", part, same)


def _part_of_itself(c, v, others):
    """Copy one part to another; now and then they overlap."""
    a = any_axis(c, v)
    to, of = c.choice((("0:1", "-1:"), ("1:2", "0:1"), ("1:", ":-1"), ("::2", "1::2")))
    target, source = f"{v}{at(a, to)}", f"{v}{at(a, of)}"
    way = c.choice(("{}.copy_({})", "{} += {}", "{}.sub_({})"))
    return Write(way.format(target, source), target, (source,))


def _out(c, v, others):
    y, sources = _operand(c, v, others)
    ways = (
        f"torch.exp({y} * 0, out={v})",
        f"torch.neg({y}, out={v})",
        f"torch.add({v}, 1, out={v})",
        f"torch.add({y}, {v}, out={v})",
        f"torch.mul({y}, 2, out={v})",
        f"torch.clamp({y}, max=3, out={v})",
        f"torch.cumsum({y}.clamp(-3, 3), 0, out={v})",
    )
    return Write(c.choice(ways), f"{v}", sources)


def _shape(c, v, others):
    """Change the shape of the name, not its elements."""
    last = c.randint(0, len(v.sizes))
    names = ("t_()", "transpose_(0, -1)", f"unsqueeze_({last})", "squeeze_(0)")
    return Write(f"{v}.{c.choice(names)}", "")


WRITES = (
    *(_number_write, _number_write, _tensor_write, _tensor_write, _tensor_write),
    *(_index_method, _index_method, _index_put, _index_put, _advanced, _scatter),
    *(_mask, _set_part, _set_part, _set_part, _part_of_itself, _out, _out, _shape),
)
FOR_BITS = (_number_write, _tensor_write, _set_part)


def write(c: Chance, v: Named, others: Others) -> Write:
    """Return a write through `v`."""
    return c.choice(FOR_BITS if v.dtype is torch.int32 else WRITES)(c, v, others)
