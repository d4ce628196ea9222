"""What comes of programs of operators: compiled by recipes, run, and held to eager.

Programs are compiled together, since a trace of many takes little longer than of one;
where something is not as in eager, each half is tried on its own, down to one program.

A result is equal if its dtype and shape are, its NaNs are where eager's are, and all
else is within `TOLERANCES` of eager's. Where it is not, eager runs again with numbers
that are rounded otherwise: elements that change then by more than this decide nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from captured_once import captured_once
from operator_programs import (
    OperatorProgram,
    Tensors,
    Together,
    copies,
    method_of,
)
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvc.compiler import compile_program
from kvc.runtime import load
from kvc.schema.errors import KvcError

RECIPES = ("fp32", "xnnpack_fp32", "cpu_fp32")
TOLERANCES = {
    torch.float64: (1e-9, 1e-11),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (4e-3, 1e-3),
    torch.bfloat16: (3e-2, 1e-2),
}  # relative, absolute
FLUSHING = ("xnnpack_fp32",)  # recipes whose library takes denormal numbers for zeros
ROUNDINGS = 8  # times that eager runs with other roundings

Kind = Literal["none", "same bits", "equal", "undecided", "refused", "wrong", "error"]
KINDS: tuple[Kind, ...] = (
    "none", "same bits", "equal", "undecided", "refused", "wrong", "error",
)  # fmt: skip
FINDINGS = ("wrong", "error")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a program; the worst of all recipes.

    Attributes:
        kind: "none" where eager itself has no answer, or another one each time.
        reason: why it is not equal.
        recipe: by which it is not.
    """

    kind: Kind
    reason: str = ""
    recipe: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A program and what eager makes of it."""

    program: OperatorProgram
    expected: Sequence[Tensors]


class Judge:
    """Tries programs, and remembers which operators have been refused.

    Programs with such an operator are tried on their own.
    """

    def __init__(self, path: Path, recipes: Sequence[str] = RECIPES) -> None:
        """Use the path of a bundle, which may be written over, and these recipes."""
        self._path = path
        self._recipes = recipes
        self._tries: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()

    def verdicts(self, programs: Sequence[OperatorProgram]) -> list[Verdict]:
        """Try programs; return what came of each."""
        found = [Verdict("none", "eager has no answer")] * len(programs)
        parts: list[list[tuple[int, Held]]] = [[]]
        for number, program in enumerate(programs):
            expected = _expected(program)
            if expected is not None:
                one = (number, Held(program, expected))
                parts[0].append(one) if self._is_likely(program) else parts.append(
                    [one]
                )
        for part in parts:
            made = self._tried([held for _, held in part])
            for (number, held), verdict in zip(part, made, strict=True):
                found[number] = verdict
                self.remember([s.name for s in held.program.code.steps], verdict.kind)
        return found

    def _is_likely(self, program: OperatorProgram) -> bool:
        names = {step.name for step in program.code.steps}
        return all(3 * self._refusals[n] <= self._tries[n] for n in names)

    def remember(self, names: Sequence[str], kind: str) -> None:
        """Remember what has come of a program of these operators."""
        self._tries.update(names)
        if kind == "refused":
            self._refusals.update(names)

    def _tried(self, some: Sequence[Held]) -> list[Verdict]:
        if not some:
            return []
        with captured_once():
            by_recipe = []
            for recipe in self._recipes:
                made = _by(recipe, some, self._path)
                if len(made) < len(some):
                    return self._halves(some, made[0])
                by_recipe.append(made)
        found = [_worst(of_one) for of_one in zip(*by_recipe, strict=True)]
        return found if len(some) == 1 else self._alone(some, found)

    def _halves(self, some: Sequence[Held], why: Verdict) -> list[Verdict]:
        """Try each half on its own; if none fails there, all fail together."""
        middle = len(some) // 2
        found = self._tried(some[:middle]) + self._tried(some[middle:])
        if any(each.kind in (why.kind, *FINDINGS) for each in found):
            return found
        return [replace(why, kind="error", reason=f"together: {why.reason}")] * len(
            some
        )

    def _alone(self, some: Sequence[Held], found: Sequence[Verdict]) -> list[Verdict]:
        """Try what is wrong once more on its own, and say if it is right there."""
        made = []
        for each, verdict in zip(some, found, strict=True):
            one = verdict
            if verdict.kind == "wrong":
                (one,) = self._tried([each])
                if one.kind != "wrong":
                    one = replace(verdict, reason=f"together: {verdict.reason}")
            made.append(one)
        return made


def _worst(some: Sequence[Verdict]) -> Verdict:
    return max(some, key=lambda each: KINDS.index(each.kind))


def _expected(program: OperatorProgram) -> list[Tensors] | None:
    """Return eager's results, None where it has none, or others the next time."""
    if not program.code.steps:
        return None
    try:
        first, second = program.expected(), program.expected()
    except Exception:
        return None
    pairs = zip(_flat(first), _flat(second), strict=True)
    return first if all(_bits_equal(one, other) for one, other in pairs) else None


def _by(recipe: str, some: Sequence[Held], path: Path) -> list[Verdict]:
    """Return what comes of each by a recipe; one verdict if all of them fail."""
    try:
        found = run([each.program for each in some], path, recipe)
    except KvcError as error:
        return [Verdict("refused", " ".join(str(error).split("\n")[:2]), recipe)]
    except Exception as error:
        return [Verdict("error", f"{type(error).__name__}: {error}"[:500], recipe)]
    return [_compared(each, one, recipe) for each, one in zip(some, found, strict=True)]


def run(
    programs: Sequence[OperatorProgram], path: Path, recipe: str
) -> list[list[Tensors]]:
    """Compile, save, load and run; return results, then inputs, of each one's calls."""
    compile_program(Together(programs).eval(), [method_of(programs)], recipe).save(path)
    found: list[list[Tensors]] = [[] for _ in programs]
    with load(path) as bundle, bundle.session() as session:
        for call in range(len(programs[0].calls)):
            inputs = [copies(each.calls[call]) for each in programs]
            flat = tuple(tensor for each in inputs for tensor in each)
            made = session.call("forward", *((flat,) if flat else ()))
            left = iter([torch.as_tensor(each) for each in tree_leaves(made)])
            for each, of_one, results in zip(programs, inputs, found, strict=True):
                count = len(each.code.results) + each.code.holds
                taken = [next(left) for _ in range(count)]
                results.append(copies((*taken, *of_one)))
            assert next(left, None) is None
    return found


def _compared(held: Held, found: Sequence[Tensors], recipe: str) -> Verdict:
    pairs = list(zip(_flat(found), _flat(held.expected), strict=True))
    if all(_bits_equal(one, other) for one, other in pairs):
        return Verdict("same bits")
    nothing: list[Tensor | None] = [None] * len(pairs)
    why = _differences(pairs, nothing)
    if not why:
        return Verdict("equal")
    loose = _undecided(held, flushed=recipe in FLUSHING)
    why = _differences(pairs, loose)
    if not why:
        return Verdict("undecided", recipe=recipe)
    return Verdict("wrong", why, recipe)


def _flat(calls: Sequence[Tensors]) -> list[Tensor]:
    return [each for call in calls for each in call]


def _bits_equal(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    same = (one == other) & (one.signbit() == other.signbit())
    return bool((same | (one.isnan() & other.isnan())).all())


def _differences(
    pairs: Sequence[tuple[Tensor, Tensor]], loose: Sequence[Tensor | None]
) -> str:
    """Return what is not equal, "" for nothing."""
    for number, ((one, other), free) in enumerate(zip(pairs, loose, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            kinds = [f"{each.dtype} {list(each.shape)}" for each in (one, other)]
            return f"result {number} is {kinds[0]}, not {kinds[1]}"
        bad = ~_close(one, other)
        if free is not None:
            bad &= ~free
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            values = f"{one[at].item()!r}, not {other[at].item()!r}"
            many = f"{int(bad.sum())} of {bad.numel()}"
            return f"result {number} at {list(at)} is {values} ({many})"
    return ""


def _close(one: Tensor, other: Tensor) -> Tensor:
    """Tell which elements are equal, within the tolerance of the dtype."""
    if not one.is_floating_point():
        return one == other
    relative, absolute = TOLERANCES[one.dtype]
    return torch.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)


def _undecided(held: Held, flushed: bool) -> list[Tensor | None]:
    """Tell which elements decide nothing.

    These change by more than the tolerance with other roundings: with numbers of 16
    bits computed in 32, or, where denormal numbers may be taken for zeros, with zeros.
    """
    known = _flat(held.expected)
    free: list[Tensor] = [torch.zeros(each.shape, dtype=torch.bool) for each in known]
    ways = [_OtherRounding(number) for number in range(ROUNDINGS)]
    for way in [*ways, *([_flushing()] if flushed else [])]:
        try:
            with way:
                made = _flat(held.program.expected())
        except Exception:
            return [torch.ones(each.shape, dtype=torch.bool) for each in known]
        _free_what_differs(free, made, known)
    if any(each.dtype in _SHORT for each in known):
        with suppress(Exception):  # not all operators can
            _free_what_differs(free, _flat(_widened(held.program).expected()), known)
    return list(free)


def _free_what_differs(
    free: Sequence[Tensor], made: Sequence[Tensor], known: Sequence[Tensor]
) -> None:
    for each, one, other in zip(free, made, known, strict=True):
        same = one.shape == other.shape
        each |= ~_close(one.to(other.dtype), other) if same else True


_SHORT = (torch.float16, torch.bfloat16)


def _widened(program: OperatorProgram) -> OperatorProgram:
    """Return a program whose inputs and buffers of 16 bits have 32."""

    def wide(tensors: Tensors) -> Tensors:
        return tuple(x.float() if x.dtype in _SHORT else x for x in tensors)

    calls = tuple(wide(call) for call in program.calls)
    return replace(program, calls=calls, held=wide(program.held))


@contextmanager
def _flushing() -> Iterator[None]:
    """Let eager take denormal numbers for zeros."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


# Operators that choose among equal values as they like: where their axis is among the
# arguments.
_CHOOSING = {
    "aten::topk": 2,
    "aten::sort": 1,
    "aten::kthvalue": 2,
    "aten::median.dim": 1,
    "aten::nanmedian.dim": 1,
    "aten::mode": 1,
}


_CONVERTING = ("aten::_to_copy", "aten::copy_")


class _OtherRounding(TorchDispatchMode):
    """Changes results in their last places, and what torch leaves open.

    That is which of equal values an operator chooses, and which integer stands for a
    float that none can be.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        place = _CHOOSING.get(func.name())
        if place is not None and not kwargs:
            return _chosen_otherwise(func, args, place, self._random)
        made = func(*args, **(kwargs or {}))
        if func.name() in _CONVERTING and isinstance(made, Tensor):
            self._make_up(made, args[int(func.name() == "aten::copy_")])
        if not func.is_view:
            for each in tree_leaves(made):
                if isinstance(each, Tensor) and each.is_floating_point():
                    self._round(each)
        return made

    def _round(self, tensor: Tensor) -> None:
        """Multiply a tensor in place by numbers close to 1."""
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        if any(size > 1 and not stride for size, stride in sizes):
            return  # several elements in one place
        most = 4 * torch.finfo(tensor.dtype).eps
        factors = 1 + most * (2 * torch.rand(tensor.shape, generator=self._random) - 1)
        tensor.mul_(factors.to(tensor.dtype))

    def _make_up(self, made: Tensor, given: object) -> None:
        """Choose integers, in place, for floats that are too large, or no numbers."""
        assert isinstance(given, Tensor)
        if made.is_floating_point() or made.dtype == torch.bool:
            return
        if given.is_floating_point() and given.shape == made.shape:
            limits = torch.iinfo(made.dtype)
            fits = (given.trunc() >= limits.min) & (given.trunc() <= limits.max)
            some = torch.randint(0, 100, made.shape, generator=self._random)
            made.copy_(torch.where(fits, made, some.to(made.dtype)))


def _chosen_otherwise(
    func: OpOverload, args: Sequence[object], place: int, chance: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Let an operator choose values and places from a tensor in another order."""
    tensor, *others = args
    axis = args[place] if len(args) > place else -1
    assert isinstance(tensor, Tensor)
    assert isinstance(axis, int)
    if not tensor.ndim:
        return func(*args)
    order = torch.randperm(tensor.shape[axis], generator=chance)
    values, places = func(tensor.index_select(axis, order), *others)
    return values, order[places]
