"""Random programs that write through chains of views, compared with eager.

In: a seed. Out: a module's code with a method `forward`, and the inputs of its calls;
`outcome` compiles it and compares. A program takes tensors (buffers, an input's copy,
results of operators), makes chains of views of them, writes through these and reads
others. Steps may stand in the body of a branch, a loop or a scan. Each step is tried in
eager while it is drawn, for the sizes of all calls at once, and drawn again if eager
refuses it. All values are whole numbers, so that results do not depend on the order of
sums.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from chain_bodies import add_body
from chain_drawer import Drawer
from chain_program import Chains, Program
from torch import Tensor

from kvc.compiler import compile_program
from kvc.runtime import load
from kvc.schema.errors import KvcError

SHAPES = ((4, 6), (2, 3, 4), (1, 4, 2, 3), (5,), (3, 3))
KINDS = ("plain", "cond", "while", "scan", "outside")
WEIGHTS = (60, 12, 7, 6, 15)
LARGEST = 2**22
FINDINGS = ("wrong", "error")
Kind = Literal["right", "refused", "undefined", "wrong", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a program.

    Attributes:
        kind: "undefined" where it compiles, but eager leaves open what a write does;
            "error" for an exception that is no `KvcError`.
        reason: why it is refused, or what is wrong.
    """

    kind: Kind
    reason: str = ""


def draw(seed: int) -> Program:
    """Return the program of a seed."""
    for attempt in range(50):
        program = _drawn(seed, random.Random(f"{seed} {attempt}"))
        if program is not None:
            return program
    raise AssertionError(f"seed {seed} has no program")


def _drawn(seed: int, chance: random.Random) -> Program | None:
    """Return a program; None if it is of no use."""
    program = _begun(seed, chance)
    drawer = Drawer(program, chance)
    drawer.rounds(chance.choice((1, 1, 2)))
    if program.kind != "plain":
        kind = program.kind
        own = kind != "outside"
        kind = kind if own else chance.choice(("cond", "cond", "while", "scan"))
        if not add_body(drawer, kind, own) or drawer.outside is own:
            return None
    drawer.rounds(chance.choice((0, 1)) if program.kind != "plain" else 1)
    program.lines, program.undefined = drawer.lines, drawer.undefined
    shown = [one.name for one in drawer.all_named()][-3:]
    program.results = [*shown, *(f"{b}.clone()" for b in program.buffers)]
    return program if _is_exact(program) else None


def _is_exact(program: Program) -> bool:
    """Tell whether eager takes a program, and all its numbers are small and whole."""
    try:
        found = program.expected()
    except Exception:
        return False
    floats = [t for call in found for t in call if t.is_floating_point()]
    return all(
        bool((t.abs() < LARGEST).all()) and torch.equal(t, t.round()) for t in floats
    )


def _begun(seed: int, chance: random.Random) -> Program:
    buffers = {f"b{i}": _buffer(chance) for i in range(chance.randint(1, 2))}
    shape = chance.choice((chance.choice(SHAPES), tuple(buffers["b0"].shape)))
    dynamic = chance.randrange(len(shape)) if chance.random() < 0.4 else None
    lower = chance.choice((1, 2))
    sizes = chance.choice(((4, 1, 6), (5, 3, 1), (3, 8, 2), (6, 2, 4)))
    sizes = tuple(max(size, lower) for size in sizes)
    dtype = torch.int64 if chance.random() < 0.1 else torch.float32
    calls = []
    for turn in range(2 if dynamic is None else 3):
        own = list(shape)
        if dynamic is not None:
            own[dynamic] = sizes[turn]
        flags = torch.tensor(turn % 2 == 0), torch.tensor((2, 0, 1)[turn])
        calls.append((_counted(tuple(own), turn - 4).to(dtype), *flags))
    kind = chance.choices(KINDS, WEIGHTS)[0]
    return Program(seed, kind, buffers, calls, dynamic, lower)


def _counted(shape: Sequence[int], start: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) + start


def _buffer(chance: random.Random) -> Tensor:
    dtype = torch.int64 if chance.random() < 0.2 else torch.float32
    buffer = _counted(chance.choice(SHAPES), chance.randint(-3, 1)).to(dtype)
    if buffer.dim() > 1 and chance.random() < 0.25:
        return buffer.mT.contiguous().mT
    return buffer


def outcome(program: Program, folder: Path, corrupt: bool = False) -> Outcome:
    """Compile a program, run its calls and compare.

    With `corrupt`, an element of what eager returns is changed, which must be noticed.
    """
    wanted = program.expected()
    if corrupt:
        last = wanted[-1][-1]
        last[(0,) * last.dim()] += 1
    try:
        found = _run(program, folder / "chain.kvc")
    except KvcError as error:
        return Outcome("refused", " ".join(str(error).split()))
    except Exception as error:
        return Outcome("error", f"{type(error).__name__}: {error}")
    if program.undefined:
        return Outcome("undefined")
    for call, (want, have) in enumerate(zip(wanted, found, strict=True)):
        if difference := _difference(want, have):
            return Outcome("wrong", f"call {call}, {difference}")
    return Outcome("right")


def _run(program: Program, path: Path) -> list[list[np.ndarray]]:
    torch._dynamo.reset()
    model = Chains(program, plain=False)
    compile_program(model, [program.method()], "fp32").save(path)
    with load(path) as loaded, loaded.session() as session:
        return [
            session.call("forward", *(each.numpy() for each in call))
            for call in program.calls
        ]


def _difference(wanted: Sequence[Tensor], found: Sequence[np.ndarray]) -> str:
    """Return how the results of a call differ; "" if they do not."""
    if len(wanted) != len(found):
        return f"{len(found)} results and not {len(wanted)}"
    for place, (want, have) in enumerate(zip(wanted, found, strict=True)):
        expected = want.numpy()
        if (expected.shape, expected.dtype) != (have.shape, have.dtype):
            return f"result {place} is {have.dtype} {have.shape}"
        if not np.array_equal(expected, have):
            at = tuple(int(i[0]) for i in np.nonzero(expected != have))
            return f"result {place} at {at} is {have[at]} and not {expected[at]}"
    return ""
