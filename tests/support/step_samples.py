"""Steps of all kernels, as the backend binds them, to be mutated."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from checked_steps import bytes_at, extent, operands_of
from native_calls import native_graph
from op_cases import CASES, Case
from torch import Tensor

from kvc.runtime.delegates.cpu.binding import bind_steps
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, tensor_as_array
from kvc.runtime.native import ABSENT, Steps
from kvc.runtime.native.library import find_library
from kvc.schema.model import Block

_MOST_BYTES = 1 << 16  # of an operand of a sample
_MOST_OF_A_KERNEL = 48
F32, F16, I8, I32, I64 = np.float32, np.float16, np.int8, np.int32, np.int64


@dataclass(frozen=True)
class Sample:
    """A step: the dtype `TENSOR` [operands], without addresses; bytes of operands.

    Operands that are left out have the bytes None.
    """

    kernel: str
    operands: np.ndarray
    memory: tuple[bytes | None, ...]
    integers: tuple[int, ...]
    numbers: tuple[float, ...]


def samples(most: int = 1 << 20) -> list[Sample]:
    """Return samples of all kernels that a file may ask for.

    Args:
        most: the number of an operator's cases of which samples are made, at most.
    """
    found: dict[str, dict[object, Sample]] = {}
    for steps in (*_of_cases(most), _by_hand()):
        for one in _read(steps):
            dims = one.operands["dims"].tobytes(), one.operands["strides"].tobytes()
            key = dims, one.operands["dtype"].tobytes(), one.integers
            of_kernel = found.setdefault(one.kernel, {})
            if len(of_kernel) < _MOST_OF_A_KERNEL:
                of_kernel.setdefault(key, one)
    return [one for name in sorted(found) for one in found[name].values()]


def _read(steps: Steps) -> Iterable[Sample]:
    names = steps.library.names()
    encoded, counts, operands = (
        steps.settle(),
        steps.setting_counts(),
        operands_of(steps),
    )
    _, integers, numbers = steps._memory
    first = np.cumsum([[0, 0], *counts.tolist()], axis=0)
    at = 0
    for i, step in enumerate(encoded):
        own = operands[at : at + int(step["tensor_count"])].copy()
        at += len(own)
        memory = tuple(_bytes_of(one) for one in own)
        if max((len(one or b"") for one in memory), default=0) <= _MOST_BYTES:
            (i0, n0), (i1, n1) = first[i], first[i + 1]
            own["data"] = 0
            yield Sample(
                names[int(step["kernel"])],
                own,
                memory,
                tuple(integers[i0:i1].tolist()),
                tuple(numbers[n0:n1].tolist()),
            )


def _bytes_of(operand: np.void) -> bytes | None:
    begin, end = extent(operand)
    if begin == 0:
        return None
    return bytes(bytes_at(begin, end - begin)) if end > begin else b""


def _of_cases(most: int) -> Iterable[Steps]:
    of_op: dict[str, list[Case]] = {}
    for case in CASES:
        if case.op != "aten::view":
            of_op.setdefault(case.op, []).append(case)
    for cases in of_op.values():
        taken, step = 0, -(-len(cases) // most)
        spread = [case for first in range(step) for case in cases[first::step]]
        for case in spread:
            if taken == most:
                break
            with torch.inference_mode():
                expected = case.eager()
            bound = _bound(case, expected)
            taken += bool(bound)
            yield from (*bound, *_bound(case.strided(), expected))


def _bound(case: Case, expected: Sequence[Tensor]) -> list[Steps]:
    """Return the steps of a case; none if the backend refuses it."""
    built = native_graph(case, expected)
    if built is None:
        return []
    graph, tensors = built
    call = bind_steps(
        "test",
        Block(graph, ()),
        {},
        [tensor_as_array(tensors[value]) for value in graph.inputs],
        [tensor_as_array(torch.empty_like(one)) for one in expected],
        Arena(graph.scratch_nbytes),
        lambda name: np.ascontiguousarray(tensor_as_array(tensors[name])),
        find_library(),
        1,
    )
    return [partition.steps for partition in call.partitions]


def _by_hand() -> Steps:
    """Return steps of the kernels that no case of `CASES` has."""
    steps = Steps(find_library(), 1)
    add = steps.add
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(F32)

    def bytes_(*shape: int) -> Array:
        return rng.integers(-127, 128, shape).astype(I8)

    add("aten::_assert_async.msg", [np.ones((), bool)], [0], [])
    add("kvc::after", [np.zeros(3, I64), np.arange(3)], [2], [])
    add("kvc::after", [np.zeros((), I64), np.int32([4])], [2], [])
    add("kvc::append", [floats(2, 3, 9, 4), floats(2, 3, 2, 4)], [2], [])
    add("kvc::replace", [floats(2, 3), floats(2, 3)], [], [])
    add("kvc::check_index", [np.arange(3)], [0, 2, 9], [])
    add("kvc::check_rows", [np.arange(3), np.ones(3, I64)], [4, 9], [])
    weight = rng.integers(0, 256, (3, 12, 8, 4)).astype(np.uint8)
    scales = floats(3, 3, 8)
    for index in (np.int32([[0, 6], [2, 1]]), np.int64([5])):
        made = np.empty((*index.shape, 96), F32)
        add("kvc::embedding_q8", [made, bytes_(7, 96), floats(7), index], [], [])
        add("kvc::embedding_q8", [made, bytes_(7, 96), floats(7, 3), index], [], [])
    for rows, width in ((1, 96), (5, 96), (40, 96), (33, 70)):
        x, out, blocks = floats(rows, width), np.empty((rows, 24), F32), -(-width // 32)
        q, scale, bias = bytes_(rows, width), floats(rows, 1), floats(24)
        zero = rng.integers(-128, 128, (rows, 1)).astype(I32)
        zeros, factors = bytes_(rows, blocks), bytes_(rows, blocks)
        add("kvc::quantize_rows", [q, scale, zero, x], [], [])
        add("kvc::quantize_blocks", [q, scale, zeros, factors, x], [], [])
        w, of_columns = bytes_(24, width), floats(24)
        for b in (bias, None):
            add("kvc::linear_qd8", [out, q, scale, zero, w, of_columns, b], [], [])
            given = [out, q, scale, zeros, factors, w, of_columns, b]
            add("kvc::linear_q8", given, [], [])
        add(
            "linears_of_rows",
            [out, out, x, *([w, of_columns, bias, None] * 2)],
            [0, 0, 1],
            [],
        )
        add("linears_of_rows", [out, x, x, w, of_columns, None, None], [1, 1, 0], [])
        add(
            "linears_of_rows",
            [out, x, floats(width), w, of_columns, bias, None],
            [2, 0, 1],
            [1e-5],
        )
        experts = rng.integers(0, 4, rows)
        many, scaled, biases = bytes_(4, 24, width), floats(4, 24), floats(4, 24)
        add(
            "kvc::expert_linear_qd8",
            [out, q, scale, zero, many, scaled, experts, biases],
            [],
            [],
        )
        add(
            "kvc::expert_linear_q8",
            [out, q, scale, zeros, factors, many, scaled, experts, None],
            [],
            [],
        )
        if width == 96:
            parts = floats(24, 3)
            add(
                "kvc::linear_q8",
                [out, q, scale, zeros, factors, w, parts, None],
                [],
                [],
            )
            half = (
                rng.integers(0, 1 << 15, (3, 3, 8)).astype(np.uint16).view(np.float16)
            )
            for s in (scales, half):
                add("kvc::linear_qb4", [out, q, scale, zero, weight, s, bias], [], [])
                for minimum in (None, scales, half):
                    given = [out, q, scale, zeros, factors, weight, s, None, minimum]
                    add("kvc::linear_q4", given, [], [])
                    of_rows = [out, x, weight, s, bias, minimum]
                    add("linears_of_rows", of_rows, [0, 0, 1], [])
    _attention(steps, floats, bytes_)
    return steps


def _attention(
    steps: Steps, floats: Callable[..., Array], bytes_: Callable[..., Array]
) -> None:
    for batch, seq, slots, dtype in ((1, 1, 40, F32), (2, 5, 300, F16), (2, 9, 33, I8)):
        q, out = floats(batch, 4, seq, 16), np.empty((batch, 4, seq, 24), F32)
        k, v = floats(batch, 2, slots, 16), floats(batch, 2, slots, 24)
        if dtype is not F32:
            k, v = ((x * 9).astype(dtype) for x in (k, v))
        valid = np.full(batch, min(slots, seq + 20), I64)
        scales = [floats(batch, 2, slots, 1)] * 2 if dtype is I8 else [None, None]
        mask, lengths = floats(1, 4, seq, slots), np.full(batch, seq, I64)
        for circular in (0, 1):
            given = [out, q, k, v, valid]
            settings = [1, ABSENT, ABSENT, circular, 0]
            numbers = [float("nan"), float("nan")]
            add = steps.add
            add(
                "kvc::attention",
                [*given, None, None, None, *scales, None],
                settings,
                numbers,
            )
            add(
                "kvc::attention",
                [*given, mask, floats(4), floats(4), *scales, lengths],
                [0, 7, 9, circular, 4 * circular],
                [0.5, 3.0],
            )
        for layout in (0, 1):
            update = floats(batch, 2, seq, 16)
            if dtype is I8:
                update = update.astype(dtype)
            starts = np.full(batch, slots - seq, I64)
            for each in (starts, None):
                for some in (lengths, None):
                    steps.add(
                        "kvc::cache_update",
                        [k, update, each, some],
                        [2, layout, layout * 3],
                        [],
                    )
