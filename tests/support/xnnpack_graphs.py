"""Run partitions by XNNPACK and by the reference kernels.

A `Sketch` makes a partition. `Native` runs it by XNNPACK with a minimal runtime,
without cache and thread pool. `run_reference` runs it with the kernels of torch.
"""

import ctypes
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from partition_sketch import Sketch
from xnnpack_programs import partition_program

from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.delegates.xnnpack import layouts
from kvc.runtime.delegates.xnnpack.functions import ExternalValue
from kvc.runtime.delegates.xnnpack.layouts import size_array
from kvc.runtime.delegates.xnnpack.library import find_library
from kvc.runtime.delegates.xnnpack.subgraph import RUNTIME_FLAGS, build_subgraph
from kvc.runtime.execution.delegate import Workspace
from kvc.runtime.memory.arenas import Arena
from kvc.schema.errors import MissingLibrary
from kvc.schema.graph import Ref

_TAIL_NBYTES = 128


def library_or_skip():
    """Return the library XNNPACK; skip the running test if it is missing."""
    try:
        return find_library()
    except MissingLibrary as error:
        pytest.skip(str(error))


class PlainStatics:
    """Named data as arrays that have readable bytes after their end.

    XNNPACK reads past the end of arrays. Packed data is made anew at each request.
    """

    def __init__(self, arrays: Iterable[np.ndarray]) -> None:
        self._arrays = [with_tail(array) for array in arrays]
        self._arranged: list[np.ndarray] = []

    def pinned(self, name: int, layout: str = layouts.PLAIN) -> np.ndarray:
        self._arranged.append(with_tail(layouts.arrange(self._arrays[name], layout)))
        return self._arranged[-1]

    def packed(self, key: tuple[int | None, ...], layout: str, *_: object) -> int:
        assert key[0] is not None
        self._arranged.append(with_tail(layouts.arrange(self._arrays[key[0]], layout)))
        return self._arranged[-1].ctypes.data


def with_tail(array: np.ndarray) -> np.ndarray:
    """Return a copy of an array, with bytes after its end that may be read."""
    memory = np.zeros(array.nbytes + _TAIL_NBYTES, np.uint8)
    memory[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return memory[: array.nbytes].view(array.dtype).reshape(array.shape)


class Native:
    """A partition run by XNNPACK, with one runtime that is reshaped for each size."""

    def __init__(self, sketch, *outputs, flags=RUNTIME_FLAGS, **sizes) -> None:
        self.graph = sketch.graph(*outputs)
        self._library = library_or_skip()
        first = sizes or {n: symbol.upper for n, symbol in sketch.symbols.items()}
        statics = PlainStatics(sketch.arrays.values())
        parts = self._library, self.graph, statics, first
        self.subgraph = build_subgraph(*parts, "test")
        self._kept, self._runtime = statics, ctypes.c_void_p()
        given = self.subgraph.pointer, None, None, None, flags
        runtime = ctypes.byref(self._runtime)
        made = self._library.xnn.xnn_create_runtime_v4(*given, runtime)
        self._library.check(made, "xnn_create_runtime_v4")

    @property
    def functions(self) -> list[str]:
        return [node.function for node in self.subgraph.translated.nodes]

    def __call__(self, *inputs: np.ndarray, **sizes: int) -> list[np.ndarray]:
        xnn, check = self._library.xnn, self._library.check
        shapes = self.subgraph.external_shapes(sizes)
        for external in self.subgraph.inputs:
            shape = len(shapes[external]), size_array(shapes[external])
            status = xnn.xnn_reshape_external_value(self._runtime, external, *shape)
            check(status, "xnn_reshape_external_value")
        check(xnn.xnn_reshape_runtime(self._runtime), "xnn_reshape_runtime")
        given = [with_tail(x) for x in inputs]
        kinds = [self.graph.values[i].type for i in self.graph.outputs]
        made = [with_tail(np.full(kind.shape(sizes), 7, np.float32)) for kind in kinds]
        for external, kind in zip(self.subgraph.outputs, made, strict=True):
            assert self._shape(external) == shapes[external]
            assert np.prod(shapes[external], dtype=int) == kind.size
        each = enumerate([*given, *made])
        places = [ExternalValue(i, array.ctypes.data) for i, array in each]
        array = (ExternalValue * len(places))(*places)
        status = xnn.xnn_setup_runtime_v2(self._runtime, len(places), array)
        check(status, "xnn_setup_runtime_v2")
        check(xnn.xnn_invoke_runtime(self._runtime), "xnn_invoke_runtime")
        return made

    def _shape(self, external: int) -> tuple[int, ...]:
        rank, dims = size_array([0]), size_array([0] * 6)
        ask = self._library.xnn.xnn_get_external_value_shape
        status = ask(self._runtime, external, rank, dims)
        self._library.check(status, "xnn_get_external_value_shape")
        return tuple(dims[: rank[0]])

    def close(self) -> None:
        self._library.xnn.xnn_delete_runtime(self._runtime)
        self.subgraph.close()


class _Buffer:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def private_array(self) -> np.ndarray:
        return self._array

    def free(self) -> None:
        """Do nothing: the buffer owns no other memory."""


def run_reference(sketch: Sketch, made, inputs, sizes) -> list[np.ndarray]:
    program, arrays = partition_program({"test": (sketch, tuple(made))})
    buffers = {name: _Buffer(array) for name, array in arrays.items()}
    handle = ReferenceHandle(program, program.delegates[0], buffers)
    graph = program.methods[0].blocks[0].graph
    kinds = [graph.values[i].type for i in graph.outputs]
    outputs = [np.zeros(kind.shape(sizes), np.float32) for kind in kinds]
    workspace = Workspace(Arena(graph.scratch_nbytes))
    handle.prepare([x.copy() for x in inputs], outputs, workspace, sizes)()
    workspace.close()
    handle.close()
    return outputs


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random normal numbers, float32 of this shape."""
    generator = np.random.default_rng(seed)
    return generator.standard_normal(shape).astype(np.float32)


def compare(
    sketch: Sketch,
    *outputs: Ref,
    rtol: float = 1e-6,
    atol: float = 1e-6,
    lengths: Sequence[int] = (1, 5, 64, 2),
    transform: object = None,
) -> Native:
    """Check XNNPACK against the reference at several lengths, with one runtime."""
    native = Native(sketch, *outputs)
    graph = native.graph
    for length in lengths:
        sizes = dict.fromkeys(sketch.symbols, length)
        shapes = [graph.values[i].type.shape(sizes) for i in graph.inputs]
        inputs = [noise(*shape, seed=i) for i, shape in enumerate(shapes)]
        if transform is not None:
            inputs = [transform(x) for x in inputs]
        found = native(*inputs, **sizes)
        expected = run_reference(sketch, outputs, inputs, sizes)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol, atol, err_msg=f"{native.functions} at {length}"
            )
    native.close()
    return native
