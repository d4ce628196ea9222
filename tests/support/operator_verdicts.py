"""Compile programs of operators by several recipes, run them, and compare with eager.

Many programs are compiled together, since a trace of many takes little longer than a
trace of one. Where the trace fails, the program in which it failed is tried alone.
Where results are wrong or another error occurs, each half of the programs is tried,
down to one program.

A result is equal to eager's if dtype and shape are, if NaN is in the same places, and
if all other elements differ by at most `TOLERANCES`. If it is not, eager runs again
with other rounding errors: elements that change by more than the tolerance then are not
compared.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from captured_once import captured_once
from ml_dtypes import bfloat16
from operator_programs import (
    OperatorProgram,
    Tensors,
    Together,
    bits_equal,
    copies,
    flat,
    method_of,
    place_of,
)
from other_roundings import close, undecided, without_denormals
from torch import Tensor
from torch.utils._pytree import tree_leaves

from kvc.compiler import compile_program
from kvc.runtime import load
from kvc.schema.errors import KvcError

RECIPES = ("fp32", "xnnpack_fp32", "cpu_fp32")
FLUSHING = ("xnnpack_fp32",)  # recipes whose library takes denormal numbers for zeros

Kind = Literal["none", "same bits", "equal", "undecided", "refused", "wrong", "error"]
KINDS: tuple[Kind, ...] = (
    "none", "same bits", "equal", "undecided", "refused", "wrong", "error",
)  # fmt: skip
FINDINGS = ("wrong", "error")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst verdict on a program over all recipes."""

    kind: Kind  # "none" where eager itself has no answer, or another one each time
    reason: str = ""  # why it is not equal
    recipe: str = ""  # by which it is not
    # of the one among programs compiled together at which the trace failed
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A program and the tensors that eager gives for each of its calls."""

    program: OperatorProgram
    expected: Sequence[Tensors]


class Judge:
    """Tries programs, and counts which operators have been refused.

    A program with an operator that was refused often is compiled alone.
    """

    def __init__(self, path: Path, recipes: Sequence[str] = RECIPES) -> None:
        """Use these recipes, and the path of a bundle, which may be overwritten."""
        self._path = path
        self._recipes = recipes
        self._tries: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()

    def verdicts(self, programs: Sequence[OperatorProgram]) -> list[Verdict]:
        found = [Verdict("none", "eager has no answer")] * len(programs)
        parts: list[list[tuple[int, Held]]] = [[]]
        for number, program in enumerate(programs):
            expected = _expected(program)
            if expected is not None:
                parts.append([(number, Held(program, expected))])
                if self._is_likely(program):
                    parts[0] += parts.pop()
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
        """Count the operators of a tried program, and whether it was refused."""
        self._tries.update(names)
        if kind == "refused":
            self._refusals.update(names)

    def _tried(self, some: Sequence[Held]) -> list[Verdict]:
        if not some:
            return []
        found = self._by_recipes(some)
        if len(found) < len(some):
            return self._parts(some, found[0])
        return self._checked(some, found)

    def _by_recipes(self, some: Sequence[Held]) -> list[Verdict]:
        by_recipe = []
        with captured_once():
            for recipe in self._recipes:
                made = _by(recipe, some, self._path)
                if len(made) < len(some):
                    return made
                by_recipe.append(made)
        return [_worst(of_one) for of_one in zip(*by_recipe, strict=True)]

    def _parts(self, some: Sequence[Held], why: Verdict) -> list[Verdict]:
        """Try parts of programs that failed together: the failed one, or each half.

        If no part fails alone, the verdict on all is that they fail together.
        """
        end = len(some) // 2 if why.place is None else why.place
        parts = some[:end], some[end : end + 1], some[end + 1 :]
        if why.place is None:
            parts = some[:end], some[end:], ()
        found = [verdict for part in parts for verdict in self._tried(part)]
        if any(each.kind in (why.kind, *FINDINGS) for each in found):
            return found
        reason = f"together: {why.reason}"
        return [replace(why, kind="error", reason=reason)] * len(some)

    def _checked(self, some: Sequence[Held], found: Sequence[Verdict]) -> list[Verdict]:
        """Try each wrong program alone once more, and note if it is right alone.

        Some recipes take denormal numbers for zeros. A program is undecided if it is
        wrong by such a recipe, but right with zeros for its denormal numbers.
        """
        made = list(found)
        for place, (each, verdict) in enumerate(zip(some, found, strict=True)):
            if verdict.kind != "wrong":
                continue
            if verdict.recipe in FLUSHING and self._of_denormals(some, place):
                made[place] = replace(verdict, kind="undecided")
            elif len(some) > 1:
                (one,) = self._tried([each])
                together = replace(verdict, reason=f"together: {verdict.reason}")
                made[place] = one if one.kind == "wrong" else together
        return made

    def _of_denormals(self, some: Sequence[Held], place: int) -> bool:
        program = without_denormals(some[place].program)
        expected = None if program is None else _expected(program)
        if program is None or expected is None:
            return False
        others = list(some)
        others[place] = Held(program, expected)
        return self._by_recipes(others)[place].kind not in FINDINGS


def _worst(some: Sequence[Verdict]) -> Verdict:
    return max(some, key=lambda each: KINDS.index(each.kind))


def _expected(program: OperatorProgram) -> list[Tensors] | None:
    """Return eager's tensors; None if eager fails, or gives others the second time."""
    if not program.code.steps:
        return None
    try:
        first, second = program.expected(), program.expected()
    except Exception:
        return None
    pairs = zip(flat(first), flat(second), strict=True)
    return first if all(bits_equal(one, other) for one, other in pairs) else None


def _by(recipe: str, some: Sequence[Held], path: Path) -> list[Verdict]:
    alone = len(some) == 1
    try:
        found = run([each.program for each in some], path, recipe)
    except KvcError as error:
        reason, place = " ".join(str(error).split("\n")[:2]), place_of(error)
        return [Verdict("refused", reason, recipe, None if alone else place)]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:500]
        return [Verdict("error", reason, recipe, None if alone else place_of(error))]
    return [_compared(each, one, recipe) for each, one in zip(some, found, strict=True)]


def run(
    programs: Sequence[OperatorProgram], path: Path, recipe: str
) -> list[list[Tensors]]:
    compile_program(Together(programs).eval(), [method_of(programs)], recipe).save(path)
    found: list[list[Tensors]] = [[] for _ in programs]
    with load(path) as bundle, bundle.session() as session:
        for call in range(len(programs[0].calls)):
            inputs = [copies(each.calls[call]) for each in programs]
            given = tuple(flat(inputs))
            made = session.call("forward", *((given,) if given else ()))
            left = map(_as_tensor, tree_leaves(made))
            for each, of_one, results in zip(programs, inputs, found, strict=True):
                count = len(each.code.results) + each.code.holds
                taken = [next(left) for _ in range(count)]
                results.append(copies((*taken, *of_one)))
            assert next(left, None) is None
    return found


def _as_tensor(made: object) -> Tensor:
    """Return a result as a tensor; a call without tensors returns numpy arrays."""
    if isinstance(made, np.ndarray) and made.dtype == bfloat16:
        return torch.as_tensor(made.view(np.int16)).view(torch.bfloat16)
    return torch.as_tensor(made)


def _compared(held: Held, found: Sequence[Tensors], recipe: str) -> Verdict:
    known = flat(held.expected)
    pairs = list(zip(flat(found), known, strict=True))
    if all(bits_equal(one, other) for one, other in pairs):
        return Verdict("same bits")
    if not _differences(pairs, [None] * len(pairs)):
        return Verdict("equal")
    loose = undecided(held.program, known, flushed=recipe in FLUSHING)
    why = _differences(pairs, loose)
    return Verdict("wrong" if why else "undecided", why, recipe)


def _differences(pairs, loose) -> str:
    """Return a text of the first difference; "" if all results are equal.

    `pairs` has each result and eager's. `loose` has for each a bool mask of elements
    that are not compared, or None.
    """
    for number, ((one, other), free) in enumerate(zip(pairs, loose, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            kinds = [f"{each.dtype} {list(each.shape)}" for each in (one, other)]
            return f"result {number} is {kinds[0]}, not {kinds[1]}"
        bad = ~close(one, other)
        if free is not None:
            bad &= ~free
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            values = f"{one[at].item()!r}, not {other[at].item()!r}"
            many = f"{int(bad.sum())} of {bad.numel()}"
            return f"result {number} at {list(at)} is {values} ({many})"
    return ""
