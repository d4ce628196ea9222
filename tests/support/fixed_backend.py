"""A backend with fixed shapes, like that of an NPU, for tests.

Its compile-time part takes all instructions. Its run-time part runs a partition only at
sizes for which there is an image: the operators of the partition with the shapes of
their results. Images are made when a partition is first loaded, or come from a file in
the bundle, in JSON: for each partition, and each combination of buckets, an image.
`MADE` has the sizes of the images that were made in this process.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from greedy_backends import ByReference, Greedy, register

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.execution.delegate import Handle, Packing
from kvc.schema.buckets import fixed_sizes
from kvc.schema.errors import BadProgram, DataFileMissing
from kvc.schema.graph import Graph
from kvc.schema.model import Delegate, Program

TARGET = "npu-1"
MADE: list[Mapping[str, int]] = []
Image = list[list[object]]
Sizes = tuple[tuple[str, int], ...]


class Fixed(Greedy):
    """Backend that takes all instructions, at fixed sizes.

    `seen` has the combinations of sizes that the compiler gave for each partition.
    """

    name: ClassVar[str] = "fixed"
    fixed_shapes = True
    seen: ClassVar[list[tuple[Mapping[str, int], ...] | None]] = []

    def lower(self, partitions, constants, symbols):
        self.seen.extend(one.sizes for some in partitions.values() for one in some)
        return super().lower(partitions, constants, symbols)


class FixedDelegate(ByReference):
    @staticmethod
    def targets() -> Sequence[str]:
        return (TARGET,)

    def init(self, partition: Delegate, data: Mapping[str, FreeableBuffer]) -> Handle:
        program = self._program
        number = program.delegates.index(partition)
        stored = [
            program.names[name].name
            for name in partition.names
            if program.names[name].format == f"fixed:{TARGET}"
        ]
        raw = _stored(data, stored)
        try:
            images = (
                read_images(raw, number) if raw else make_images(program, partition)
            )
        except (ValueError, KeyError, TypeError) as error:
            what = f"the file for {TARGET} is damaged: {error!r}"
            raise BadProgram(path=self._path, where=stored[0], what=what) from error
        return FixedHandle(program, partition, data, images)

    def export(self, target: str, handles: Mapping[int, Handle]) -> Packing:
        partitions = {
            str(number): [[dict(sizes), one] for sizes, one in handle.images.items()]
            for number, handle in sorted(handles.items())
            if isinstance(handle, FixedHandle)
        }
        whole = {"target": target, "partitions": partitions}
        raw = json.dumps(whole, sort_keys=True).encode()
        numbers = tuple(sorted(handles))
        return Packing(f"fixed {target}", "", numbers, len(raw), lambda: raw)


def _stored(data: Mapping[str, FreeableBuffer], names: Sequence[str]) -> bytes:
    """Return the bytes of the file with images in a bundle, b"" if there is no file."""
    try:
        for name in names:
            with data[name] as buffer:
                return buffer.array().tobytes()
    except DataFileMissing:
        pass
    return b""


def make_images(program: Program, partition: Delegate) -> dict[Sizes, Image]:
    graph = program.methods[partition.method].blocks[partition.block].graph
    types = [value.type for value in graph.values]
    every = fixed_sizes(program.symbols, types)
    assert every is not None, "a backend of fixed shapes is compiled with buckets"
    MADE.extend(every)
    return {tuple(sorted(sizes.items())): image_of(graph, sizes) for sizes in every}


def image_of(graph: Graph, sizes: Mapping[str, int]) -> Image:
    shapes = [list(value.type.shape(sizes)) for value in graph.values]
    inputs = [shapes[v] for v in graph.inputs]
    steps: Image = [
        [step.op, [shapes[v] for v in step.results]] for step in graph.instructions
    ]
    return [["inputs", inputs], *steps]


def read_images(raw: bytes, number: int) -> dict[Sizes, Image]:
    whole = json.loads(raw)
    if whole["target"] != TARGET:
        raise ValueError(f"it is for {whole['target']}")
    found: dict[Sizes, Image] = {}
    for sizes, image in whole["partitions"][str(number)]:
        if any(type(size) is not int for size in sizes.values()):
            raise ValueError(f"sizes {sizes}")
        found[tuple(sorted(sizes.items()))] = image
    return found


class FixedHandle(ReferenceHandle):
    def __init__(self, program, partition, data, images: dict[Sizes, Image]) -> None:
        super().__init__(program, partition, data)
        types = [value.type for value in self._graph.values]
        symbols = fixed_sizes(program.symbols, types) or ({},)
        self._names, self.images = sorted(symbols[0]), images

    def prepare(self, inputs, outputs, workspace, sizes) -> Callable[[], None]:
        key = tuple((name, sizes[name]) for name in self._names)
        if self.images.get(key) != image_of(self._graph, sizes):
            raise RuntimeError(f"no image for {dict(key)}")
        return super().prepare(inputs, outputs, workspace, sizes)


def register_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the backend for the duration of one test."""
    register(monkeypatch, Fixed, FixedDelegate)
    MADE.clear()
    Fixed.seen.clear()


def recipe(folder: Path, backend: str = "fixed", **buckets: tuple[int, ...]) -> str:
    lines = [f"{name} = {list(sizes)}" for name, sizes in buckets.items()]
    path = folder / f"{backend}_{len(buckets)}.toml"
    table = "\n".join(["[buckets]", *lines]) if lines else ""
    path.write_text(f'[backend]\nname = "{backend}"\n{table}\n')
    return str(path)
