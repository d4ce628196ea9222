"""Decompose operators on complex numbers into operators on real ones.

In: a call with complex tensors while it is traced. Out: the result of the call. The
real and the imaginary part of the result are computed separately and combined by
`aten.complex`. `kvc.compiler.trace.real_parts` removes `aten.complex` later, by giving
the parts to the nodes that read them. An operator without a rule keeps its complex
tensors, and `real_parts` refuses it.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
Rule = Callable[..., object]
Part = Tensor | float


def with_complex(
    table: Mapping[torch._ops.OperatorBase, Rule],
) -> dict[torch._ops.OperatorBase, Rule]:
    """Return a table of decompositions with the complex rules added."""
    own = {op: _or_else(rule, table.get(op)) for op, rule in RULES.items()}
    return {**table, **own}


def _or_else(rule: Rule, usual: Rule | None) -> Rule:
    """Return a rule that applies `rule` to complex arguments and `usual` to others.

    Without a usual rule, calls without complex arguments stay as they are.
    """

    def chosen(*args: object, **kwargs: object) -> object:
        if any(map(_is_complex, tree_leaves((args, kwargs)))):
            return rule(*args, **kwargs)
        return NotImplemented if usual is None else usual(*args, **kwargs)

    return chosen


def _is_complex(x: object) -> bool:
    """Tell whether a tensor, a number or a dtype is complex."""
    kind = isinstance(x, Tensor | torch.dtype) and x.is_complex
    return isinstance(x, complex) or bool(kind() if callable(kind) else kind)


def parts_of(x: object) -> tuple[Part, Part]:
    """Return the real and the imaginary part of a tensor or number."""
    if isinstance(x, Tensor):
        if not x.is_complex():
            return x, 0.0
        both = _aten.view_as_real.default(x)
        return both.select(-1, 0), both.select(-1, 1)
    assert isinstance(x, int | float | complex)
    number = complex(x)
    return number.real, number.imag


def together(real: Part, imaginary: Part, like: Tensor | None = None) -> Tensor:
    """Build a complex tensor from parts; a part that is a number fills all elements."""
    tensors = [each for each in (real, imaginary) if isinstance(each, Tensor)]
    shape = torch.broadcast_shapes(*(each.shape for each in tensors))  # type: ignore[no-untyped-call]
    first = tensors[0]
    whole = [
        each.expand(shape) if isinstance(each, Tensor) else first.new_full(shape, each)
        for each in (real, imaginary)
    ]
    return torch.complex(*whole)


def _whole_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real and the imaginary part of a tensor, both as tensors."""
    real, imaginary = parts_of(x)
    assert isinstance(real, Tensor)
    if isinstance(imaginary, Tensor):
        return real, imaginary
    return real, torch.zeros_like(real)


def _alike(op: torch._ops.OperatorBase) -> Rule:
    """Return the rule of a linear operator: apply the operator to each part."""

    def rule(x: Tensor, *args: object, **kwargs: object) -> object:
        if any(map(_is_complex, tree_leaves((args, kwargs)))):
            return NotImplemented
        real, imaginary = (op(part, *args, **kwargs) for part in _whole_parts(x))
        if isinstance(real, Tensor):
            return torch.complex(real, imaginary)
        return [torch.complex(a, b) for a, b in zip(real, imaginary, strict=True)]

    return rule


def _joined(op: torch._ops.OperatorBase) -> Rule:
    """Return the rule of an operator that concatenates tensors."""

    def rule(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        parts = [_whole_parts(each) for each in tensors]
        return torch.complex(
            *(op(list(some), dim) for some in zip(*parts, strict=True))
        )

    return rule


def _written(op: torch._ops.OperatorBase, place: int) -> Rule:
    """Return the rule of an operator that writes values into its first argument.

    `place` is the index of the argument that has the values.
    """

    def rule(x: Tensor, *args: object, **kwargs: object) -> object:
        values = args[place - 1]
        if not x.is_complex() or not isinstance(values, Tensor):
            return NotImplemented

        def part(old: Tensor, new: Tensor) -> Tensor:
            given = [*args]
            given[place - 1] = new.to(old.dtype)
            made: Tensor = op(old, *given, **kwargs)
            return made

        parts = zip(_whole_parts(x), _whole_parts(values), strict=True)
        return torch.complex(*(part(old, new) for old, new in parts))

    return rule


def _add(x: object, y: object, *, alpha: float = 1) -> Tensor:
    (a, b), (c, d) = parts_of(x), parts_of(y)
    return together(_sum(a, c, alpha), _sum(b, d, alpha))


def _sum(x: Part, y: Part, alpha: float) -> Part:
    """Return x + alpha * y; a number 0 in place of a part adds nothing."""
    if not isinstance(y, Tensor) and y == 0:
        return x
    return x + (y if alpha == 1 else y * alpha)


def _sub(x: object, y: object, *, alpha: float = 1) -> Tensor:
    return _add(x, y, alpha=-alpha)


def _mul(x: object, y: object) -> Tensor:
    (a, b), (c, d) = parts_of(x), parts_of(y)
    if _is_real(y):
        return together(a * c, b * c)
    if _is_real(x):
        return together(a * c, a * d)
    return together(a * c - b * d, a * d + b * c)


def _is_real(x: object) -> bool:
    return not _is_complex(x)


def _div(x: object, y: object) -> Tensor:
    """Divide complex numbers; the divisor is scaled to about 1 against overflow."""
    (a, b), (c, d) = parts_of(x), parts_of(y)
    if _is_real(y):
        return together(a / c, b / c)
    if not isinstance(c, Tensor) or not isinstance(d, Tensor):
        return _mul(x, 1 / complex(c, d))
    scale = torch.maximum(c.abs(), d.abs())
    c, d = c / scale, d / scale
    size = (c * c + d * d) * scale
    return together((a * c + b * d) / size, (b * c - a * d) / size)


def _reciprocal(x: Tensor) -> Tensor:
    return _div(1.0, x)


def _power(x: object, exponent: object) -> object:
    """Raise a complex tensor to a small integer power."""
    if exponent not in _EXPONENTS or not _is_complex(x):
        return NotImplemented
    found = x
    for _ in range(int(exponent) - 1):
        found = _mul(found, x)
    return found


def _product(op: torch._ops.OperatorBase) -> Rule:

    def rule(x: Tensor, y: Tensor) -> Tensor:
        (a, b), (c, d) = parts_of(x), parts_of(y)
        if not x.is_complex():
            return torch.complex(op(a, c), op(a, d))
        if not y.is_complex():
            return torch.complex(op(a, c), op(b, c))
        return torch.complex(op(a, c) - op(b, d), op(a, d) + op(b, c))

    return rule


def _conjugate(x: Tensor) -> Tensor:
    real, imaginary = parts_of(x)
    return together(real, -imaginary)


def _absolute(x: Tensor) -> Tensor:
    real, imaginary = parts_of(x)
    return torch.hypot(real, imaginary)  # type: ignore[arg-type]  # parts of a tensor


def _angle(x: Tensor) -> Tensor:
    real, imaginary = parts_of(x)
    return torch.atan2(imaginary, real)  # type: ignore[arg-type]  # parts of a tensor


def _real_angle(x: Tensor) -> Tensor:
    """Return pi for negative numbers, 0 for others, and NaN for NaN."""
    wide = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    angles = torch.where(wide < 0, math.pi, torch.zeros_like(wide))
    return torch.where(wide.isnan(), wide, angles)


def _exponential(x: Tensor) -> Tensor:
    real, imaginary = parts_of(x)
    return polar(torch.exp(real), imaginary)  # type: ignore[arg-type]  # parts of a tensor


def polar(size: Tensor, angle: Tensor) -> Tensor:
    """Return the complex numbers that have given magnitudes and angles."""
    return together(size * torch.cos(angle), size * torch.sin(angle))


def from_pairs(x: Tensor) -> Tensor:
    """Return complex numbers from a last axis of size 2: real and imaginary part."""
    return torch.complex(x.select(-1, 0), x.select(-1, 1))


def _where(condition: Tensor, x: object, y: object) -> Tensor:
    (a, b), (c, d) = parts_of(x), parts_of(y)
    return together(torch.where(condition, a, c), torch.where(condition, b, d))


def _cast(x: Tensor, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    """Cast to a complex dtype; for any other dtype, cast only the real part."""
    kind = x.dtype if dtype is None else dtype
    if not kind.is_complex:
        return _whole_parts(x)[0].to(kind)
    return torch.complex(*(each.to(kind.to_real()) for each in _whole_parts(x)))


def _full(
    size: Sequence[int], value: object, *, dtype: torch.dtype | None = None, **_: object
) -> object:
    """Return a tensor of a size that is filled with one complex number."""
    whole = torch.get_default_dtype().to_complex() if dtype is None else dtype
    if not whole.is_complex:
        return NotImplemented
    kind = whole.to_real()
    return torch.complex(*(torch.full(size, v, dtype=kind) for v in parts_of(value)))  # type: ignore[arg-type]  # two numbers


def _full_like(
    x: Tensor, value: object, *, dtype: torch.dtype | None = None, **_: object
) -> object:
    return _full(x.shape, value, dtype=x.dtype if dtype is None else dtype)


def _scalar(value: object, **kwargs: object) -> object:
    return _full((), value, **kwargs)  # type: ignore[arg-type]  # as torch has them


def _known(*_: object, **__: object) -> None:
    """Drop an operator that checks dtype, layout or device; tracing checks them too."""


_ALIKE = (
    _aten._unsafe_view.default,
    _aten.alias.default,
    _aten.clone.default,
    _aten.constant_pad_nd.default,
    _aten.cumsum.default,
    _aten.diagonal.default,
    _aten.expand.default,
    _aten.flip.default,
    _aten.gather.default,
    _aten.index.Tensor,
    _aten.index_select.default,
    _aten.mean.default,
    _aten.mean.dim,
    _aten.neg.default,
    _aten.permute.default,
    _aten.repeat.default,
    _aten.roll.default,
    _aten.select.int,
    _aten.slice.Tensor,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.sum.default,
    _aten.sum.dim_IntList,
    _aten.t.default,
    _aten.transpose.int,
    _aten.unbind.int,
    _aten.unfold.default,
    _aten.unsqueeze.default,
    _aten.view.default,
)
_WRITES = {
    _aten.copy.default: 1,
    _aten.index_put.default: 2,
    _aten.select_scatter.default: 1,
    _aten.slice_scatter.default: 1,
}
_EXPONENTS = (1, 2, 3, 4)
RULES: Mapping[torch._ops.OperatorBase, Rule] = {
    **{op: _alike(op) for op in _ALIKE},
    **{op: _joined(op) for op in (_aten.cat.default, _aten.stack.default)},
    **{op: _written(op, place) for op, place in _WRITES.items()},
    _aten._assert_tensor_metadata.default: _known,
    _aten._conj.default: _conjugate,
    _aten._conj_physical.default: _conjugate,
    _aten._to_copy.default: _cast,
    _aten.abs.default: _absolute,
    _aten.add.Tensor: _add,
    _aten.angle.default: _angle,
    _aten.bmm.default: _product(_aten.bmm.default),
    _aten.div.Tensor: _div,
    _aten.exp.default: _exponential,
    _aten.full.default: _full,
    _aten.full_like.default: _full_like,
    _aten.matmul.default: _product(_aten.matmul.default),
    _aten.mm.default: _product(_aten.mm.default),
    _aten.mul.Tensor: _mul,
    _aten.pow.Tensor_Scalar: _power,
    _aten.reciprocal.default: _reciprocal,
    _aten.scalar_tensor.default: _scalar,
    _aten.sub.Tensor: _sub,
    _aten.where.self: _where,
}
# Operators on real numbers, most of which return complex ones.
MAKERS: Mapping[torch._ops.OperatorBase, Rule] = {
    _aten.angle.default: _real_angle,
    _aten.polar.default: polar,
    _aten.view_as_complex.default: from_pairs,
}
