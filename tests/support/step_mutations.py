"""Mutations of steps: each is made of a seed and its number alone.

In: samples of steps. Out: steps with one to three parts changed. `mutated_runs.py` runs
those that a kernel may run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from step_samples import Sample

from kvc.runtime.native import ABSENT, TENSOR

_DIMS = (0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33, 64, 1 << 20, 1 << 33, 1 << 62)
_INTEGERS = (
    0, 1, -1, 2, -2, 3, 4, 5, 7, 8, 9, 16, 33, 1 << 20, 1 << 31, 1 << 40, 1 << 62,
    (1 << 63) - 1, ABSENT, ABSENT + 1,
)  # fmt: skip
_NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-7, 1e7, 1e-300, 1e300,
    float("nan"), float("inf"), -float("inf"),
)  # fmt: skip


@dataclass
class Mutated:
    """A step whose parts may be changed; see `Sample`."""

    kernel: str
    operands: np.ndarray
    memory: list[bytes | None]
    integers: list[int]
    numbers: list[float]
    over: dict[int, int] = field(default_factory=dict)  # operands that lie over others


def mutate(samples: Sequence[Sample], seed: int, number: int) -> Mutated:
    """Return a mutation: one to three changes of a sample."""
    rng = np.random.default_rng((seed, number))
    kernels = sorted({one.kernel for one in samples})
    kernel = kernels[number % len(kernels)]
    own = [one for one in samples if one.kernel == kernel]
    one = own[int(rng.integers(len(own)))]
    made = Mutated(
        kernel,
        one.operands.copy(),
        list(one.memory),
        list(one.integers),
        list(one.numbers),
    )
    for _ in range(int(rng.choice((0, 1, 1, 1, 1, 2, 2, 3)))):
        change = _CHANGES[int(rng.integers(len(_CHANGES)))]
        change(made, rng)
    return made


def pick(rng: np.random.Generator, values: Sequence[object]) -> object:
    return values[int(rng.integers(len(values)))]


def _present(made: Mutated) -> list[int]:
    return [i for i, each in enumerate(made.memory) if each is not None]


def _some_axis(made: Mutated, rng: np.random.Generator) -> tuple[int, int] | None:
    axes = [
        (i, axis)
        for i in _present(made)
        for axis in range(max(0, min(8, int(made.operands[i]["rank"]))))
    ]
    return axes[int(rng.integers(len(axes)))] if axes else None


def _other_size(size: int, rng: np.random.Generator) -> int:
    near = max(0, size - 1), size + 1, 2 * size, size // 2
    return int(pick(rng, (*_DIMS[:14], *near) if rng.random() < 0.9 else _DIMS))


def _change_dim(made: Mutated, rng: np.random.Generator) -> None:
    if (at := _some_axis(made, rng)) is not None:
        dims = made.operands[at[0]]["dims"]
        dims[at[1]] = _other_size(int(dims[at[1]]), rng)


def _change_size(made: Mutated, rng: np.random.Generator) -> None:
    """Change all dims of a size, in all operands; those without gaps stay without."""
    if (at := _some_axis(made, rng)) is None:
        return
    size = int(made.operands[at[0]]["dims"][at[1]])
    other = _other_size(size, rng)
    for i in _present(made):
        operand, rank = made.operands[i], int(made.operands[i]["rank"])
        dims, strides = operand["dims"], operand["strides"]
        same = dims[:rank] == size
        packed = strides[:rank].tolist() == _packed(dims[:rank])
        dims[:rank][same] = other
        if packed:
            strides[:rank] = _packed(dims[:rank])
    if rng.random() < 0.7:
        made.integers = [other if each == size else each for each in made.integers]


def _packed(dims: np.ndarray) -> list[int]:
    strides, step = [], 1
    for dim in reversed(dims.tolist()):
        strides.append(step)
        step = min(step * dim, 1 << 60)
    return strides[::-1]


def _change_stride(made: Mutated, rng: np.random.Generator) -> None:
    if (at := _some_axis(made, rng)) is not None:
        strides = made.operands[at[0]]["strides"]
        one = int(strides[at[1]])
        near = one + 1, max(0, one - 1), 2 * one, -one
        strides[at[1]] = pick(rng, (*_DIMS, *near))


def _change_dtype(made: Mutated, rng: np.random.Generator) -> None:
    if present := _present(made):
        made.operands[int(pick(rng, present))]["dtype"] = int(rng.integers(-1, 11))


def _change_dtypes(made: Mutated, rng: np.random.Generator) -> None:
    if present := _present(made):
        dtype = int(made.operands[int(pick(rng, present))]["dtype"])
        other = int(rng.integers(0, 10))
        for i in present:
            if int(made.operands[i]["dtype"]) == dtype:
                made.operands[i]["dtype"] = other


def _change_rank(made: Mutated, rng: np.random.Generator) -> None:
    if not (present := _present(made)):
        return
    operand = made.operands[int(pick(rng, present))]
    rank, dims, strides = int(operand["rank"]), operand["dims"], operand["strides"]
    match int(rng.integers(5)):
        case 0 if rank < 8:  # a first axis
            dims[1:], strides[1:] = dims[:-1].copy(), strides[:-1].copy()
            dims[0], strides[0] = pick(rng, (1, 1, 2)), pick(rng, (0, 1, 7))
            operand["rank"] = rank + 1
        case 1 if rank < 8:  # a last one
            dims[rank], strides[rank] = 1, 1
            operand["rank"] = rank + 1
        case 2 if 0 < rank <= 8:
            dims[:-1], strides[:-1] = dims[1:].copy(), strides[1:].copy()
            dims[-1] = strides[-1] = 0
            operand["rank"] = rank - 1
        case 3 if 0 < rank <= 8:
            dims[rank - 1] = strides[rank - 1] = 0
            operand["rank"] = rank - 1
        case _:
            operand["rank"] = int(rng.integers(-1, 10))


def _change_presence(made: Mutated, rng: np.random.Generator) -> None:
    i = int(rng.integers(max(1, len(made.memory))))
    if i >= len(made.memory):
        return
    if made.memory[i] is not None:
        made.memory[i] = None
        made.operands[i] = np.zeros((), TENSOR)
    elif present := _present(made):
        made.operands[i] = made.operands[int(pick(rng, present))]
        made.memory[i] = b""


def _change_integer(made: Mutated, rng: np.random.Generator) -> None:
    if made.integers:
        i = int(rng.integers(len(made.integers)))
        one = made.integers[i]
        near = (min(one + 1, (1 << 63) - 1), max(one - 1, ABSENT), 2 * one)
        other = int(pick(rng, (*_INTEGERS, *_INTEGERS[:12], *near)))
        made.integers[i] = min(max(other, ABSENT), -(ABSENT + 1))


def _change_number(made: Mutated, rng: np.random.Generator) -> None:
    if made.numbers:
        made.numbers[int(rng.integers(len(made.numbers)))] = float(pick(rng, _NUMBERS))  # type: ignore[arg-type]


def _change_lengths(made: Mutated, rng: np.random.Generator) -> None:
    match int(rng.integers(5)):
        case 0:
            made.integers = made.integers[: int(rng.integers(len(made.integers) + 1))]
        case 1:
            made.numbers = made.numbers[: int(rng.integers(len(made.numbers) + 1))]
        case 2:
            made.integers.insert(
                int(rng.integers(len(made.integers) + 1)), int(pick(rng, _INTEGERS))
            )
        case 3 if made.memory:
            made.memory.pop()
            made.operands = made.operands[:-1]
        case _ if made.memory:
            i = int(rng.integers(len(made.memory)))
            made.operands = np.concatenate([made.operands, made.operands[i : i + 1]])
            made.memory.append(made.memory[i])


def _exchange(made: Mutated, rng: np.random.Generator) -> None:
    if len(made.memory) > 1:
        i, j = (int(each) for each in rng.integers(len(made.memory), size=2))
        made.operands[[i, j]] = made.operands[[j, i]]
        made.memory[i], made.memory[j] = made.memory[j], made.memory[i]


def _lay_over(made: Mutated, rng: np.random.Generator) -> None:
    if len(present := _present(made)) > 1:
        made.over[int(pick(rng, present))] = int(pick(rng, present))


def _forget_values(made: Mutated, rng: np.random.Generator) -> None:
    if present := _present(made):
        made.memory[int(pick(rng, present))] = b""


_CHANGES = (
    _change_dim, _change_size, _change_size, _change_size, _change_stride,
    _change_dtype, _change_dtypes, _change_rank, _change_presence, _change_integer,
    _change_integer, _change_number, _change_lengths, _exchange, _lay_over,
    _forget_values,
)  # fmt: skip


def describe(samples: Sequence[Sample], seed: int, number: int) -> str:
    """Return what a mutation is."""
    made = mutate(samples, seed, number)
    lines = [f"{number} {made.kernel} {made.integers} {made.numbers} over {made.over}"]
    for one, memory in zip(made.operands, made.memory, strict=True):
        rank = max(0, min(8, int(one["rank"])))
        dims, strides = one["dims"][:rank].tolist(), one["strides"][:rank].tolist()
        given = "none" if memory is None else f"{dims} {strides}"
        lines.append(f"  dtype {int(one['dtype'])} rank {int(one['rank'])} {given}")
    return "\n".join(lines)
