"""Requests to the subprocess that calls Core AI; see `serving.py`.

    open    load the library: paths of Python's packages, the work folder
    build   read functions from a file in the work folder, make an asset, and load it
    store   write functions from a file as an asset, a folder; return the asset's files
    bind    set the locations of a function's tensors in shared memory
    run     run a bound function
    forget  release a bound function

The functions are those of `function.py`, in a file of JSON. Weights lie in a second
file of the same folder. Operators compute like numpy's functions of the same names;
`_Builder` has a method for each. A crash of the library ends only the subprocess. This
module imports nothing of kvc.
"""

import asyncio
import json
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

WEIGHTS: Final = "weights.bin"
MINIMUM_OS: Final = "v27"
_SMALL: Final = 64  # elements of a constant that is written out
_MUTATION: Final = "MutableBuffers.buffer_mutation"

Request = dict[str, Any]
Value = Any  # a tensor under construction
Thing = Any  # another object of the library, or of numpy
Placed = tuple[str, str, int, list[int]]


class Work:
    """The functions that the library has loaded, and their bindings to memory."""

    def __init__(self) -> None:
        self.folder = ""
        self._loop = asyncio.new_event_loop()
        self._models: list[tuple[Any, Any]] = []
        self._functions: dict[str, Any] = {}
        self._bound: dict[int, _Bound] = {}

    def open(self, paths: list[str], folder: str) -> None:
        """Load the library; its temporary files are within the folder."""
        sys.path[:] = paths
        os.chdir(folder)
        self.folder = tempfile.tempdir = folder
        import coreai.authoring
        import coreai.runtime  # noqa: F401  # errors of loading are reported now

    def build(self, file: str) -> None:
        """Make an asset of the functions in a file, and load them."""
        functions = json.loads(Path(file).read_text())
        asset = make_asset(functions, Path(tempfile.mkdtemp()) / "built.aimodel")
        loading = asset.executable()
        model = self._loop.run_until_complete(loading.__aenter__())
        self._models.append((loading, model))
        for function in functions:
            name = function["name"]
            self._functions[name] = model.load_function(name)
        shutil.rmtree(asset.path.parent)

    def store(self, file: str, folder: str) -> list[str]:
        """Write a file's functions as an asset in `folder`; return the asset files."""
        root = Path(folder)
        make_asset(json.loads(Path(file).read_text()), root)
        found = (path for path in root.rglob("*") if path.is_file())
        return sorted(path.relative_to(root).as_posix() for path in found)

    def bind(
        self,
        memory: int,
        name: str,
        number: int,
        nbytes: int,
        inputs: list[Placed],
        states: list[Placed],
        outputs: list[Placed],
    ) -> None:
        """Bind a function to tensors, given as name, dtype, offset and shape."""
        held = mmap.mmap(memory, nbytes)
        os.close(memory)
        places = [_arrays(held, placed) for placed in (inputs, states, outputs)]
        self._bound[number] = _Bound(self._functions[name], *places)

    def run(self, number: int) -> None:
        """Run a bound function."""
        self._loop.run_until_complete(self._bound[number].run())

    def forget(self, number: int) -> None:
        """Release a bound function, if there is one."""
        self._bound.pop(number, None)


def _arrays(held: mmap.mmap, placed: Sequence[Placed]) -> dict[str, Any]:
    import numpy as np

    return {
        name: np.ndarray(tuple(shape), dtype, held, offset)
        for name, dtype, offset, shape in placed
    }


class _Bound:
    """A function, and arrays over shared memory for its tensors, by name."""

    def __init__(
        self,
        function: Thing,
        inputs: dict[str, Any],
        states: dict[str, Any],
        outputs: dict[str, Any],
    ) -> None:
        self._function = function
        used = {
            *function.desc.input_names
        }  # the library drops inputs that nothing reads
        self._inputs = {name: a for name, a in inputs.items() if name in used}
        self._states, self._outputs = states, outputs

    async def run(self) -> None:
        """Copy inputs to the library, run the function, and copy outputs back.

        Each run creates new arrays of the library, since the library does not see
        writes to an array that it has used.
        """
        from coreai.runtime import NDArray

        inputs = {name: NDArray(array) for name, array in self._inputs.items()}
        states = {name: NDArray(array) for name, array in self._states.items()}
        made = await self._function(inputs, states)
        for name, array in self._outputs.items():
            array[...] = made[name].numpy()
        for name, array in self._states.items():
            array[...] = states[name].numpy()


def make_asset(functions: Sequence[Mapping[str, Any]], path: Path) -> Thing:
    """Write functions as an asset, which is a folder, and return the asset.

    Equal functions give equal bytes.
    """
    from coreai._compiler.ir import Location
    from coreai.authoring import AIProgram, Context, Module, OSVersion

    with Context(), Location.unknown():
        module = Module.create()
        resources: dict[str, Thing] = {}
        with module, Location.unknown():
            for function in functions:
                _Builder(function, resources).build()
        asset = AIProgram(module).save_asset(path, minimum_os=OSVersion(MINIMUM_OS))
    _undate(path / "metadata.json")
    return asset


def _undate(path: Path) -> None:
    """Rewrite an asset's metadata file in a fixed order and with a fixed date."""
    found = json.loads(path.read_text())
    found["creationDate"] = "19700101T000000Z"
    path.write_text(json.dumps(found, indent=2, sort_keys=True))


class _Builder:
    """Builds a graph of Core AI from one function.

    Large constants are resources of the module, with names that kvc gives. The library
    itself would give them different numbers in each process.
    """

    def __init__(
        self, function: Mapping[str, Any], resources: dict[str, Thing]
    ) -> None:
        from coreai._compiler.dialects import coreai

        self._function, self._ops, self._resources = function, coreai, resources
        self._values: dict[str, Value] = {}

    def build(self) -> None:
        """Add the graph to the open module."""
        function, ops = self._function, self._ops
        states = dict(function["states"])
        names = [*function["inputs"], *states]
        types = [self._type(name) for name in names]
        graph = ops.GraphOp(function["name"], types, [], input_names=names)
        with graph.block:
            self._values.update(zip(names, graph.arguments, strict=True))
            for step in function["steps"]:
                self._step(*step)
            made = {name: self._get(each) for name, each in function["outputs"].items()}
            after = {f"{n}_after": self._get(each) for n, each in states.items()}
        graph.outputs_spec = [*made.items(), *after.items()]
        # The states, and the names of their new contents.
        from coreai._compiler.ir import ArrayAttr, DictAttr, StringAttr

        marked = []
        for name, given in zip(names, graph.arg_attrs, strict=True):
            found = {each.name: each.attr for each in given}
            if name in states:
                found[_MUTATION] = StringAttr.get(f"{name}_after")
            marked.append(DictAttr.get(found))
        graph.arg_attrs = ArrayAttr.get(marked)

    def _type(self, name: str) -> Thing:
        import numpy as np
        from coreai.authoring import TensorType

        dtype, shape = self._function["tensors"][name]
        return TensorType(shape, np.dtype(dtype).type)._to_mlir()

    def _shape(self, name: str) -> list[int]:
        shape: list[int] = self._function["tensors"][name][1]
        return shape

    def _get(self, name: str) -> Value:
        """Return the tensor with a name; a constant is created on first use."""
        if name not in self._values:
            array = self._constant(name)
            if array.size > _SMALL:
                made = self._ops.ConstantOp(value=self._resource(name, array)).result
            else:
                made = self._ops.constant(array)
            self._values[name] = made
        return self._values[name]

    def _resource(self, name: str, array: Thing) -> Thing:
        """Return a resource of the module, shared by all functions that use it."""
        from coreai._compiler.ir import DenseResourceElementsAttr

        is_weight = name in self._function["weights"]
        plain = name.removeprefix("%")
        own = plain if is_weight else f"{self._function['name']}_{plain}"
        if own not in self._resources:
            self._resources[own] = DenseResourceElementsAttr.get_from_buffer(
                array, own, self._type(name)
            )
        return self._resources[own]

    def _constant(self, name: str) -> Thing:
        import numpy as np

        dtype, shape = self._function["tensors"][name]
        if name in self._function["constants"]:
            numbers = self._function["constants"][name]
            return np.array(numbers, dtype).reshape(shape)
        at, count = self._function["weights"][name], int(np.prod(shape))
        return np.fromfile(WEIGHTS, dtype, count, offset=at).reshape(shape)

    def _step(
        self, op: str, inputs: list[str], output: str, facts: dict[str, Any]
    ) -> None:
        """Add an operator, whose result has a known shape."""
        given = [self._get(name) for name in inputs]
        special = getattr(self, f"_make_{op}", None)
        if special is not None:
            made = special(output, *given, **facts)
        elif op in _BY_NAME:
            made = getattr(self._ops, _BY_NAME[op])(*given)
        else:
            raise ValueError(f"no operator {op!r}")
        self._values[output] = made

    def _numbers(self, values: Sequence[int], *, signed: bool = True) -> Value:
        import numpy as np

        return self._ops.constant(np.array(values, np.int32 if signed else np.uint32))

    def _make_gelu(self, output: str, x: Value, approximate: str) -> Value:
        return self._ops.gelu(x, approximate=approximate)

    def _make_softmax(self, output: str, x: Value, axis: int) -> Value:
        return self._ops.softmax(x, axis)

    def _make_cast(self, output: str, x: Value) -> Value:
        import numpy as np

        return self._ops.cast(x, np.dtype(self._function["tensors"][output][0]).type)

    def _make_reshape(self, output: str, x: Value) -> Value:
        return self._ops.reshape(x, self._shape(output))

    def _make_transpose(self, output: str, x: Value, order: list[int]) -> Value:
        return self._ops.transpose(x, self._numbers(order, signed=False))

    def _make_slice(
        self, output: str, x: Value, axis: int, start: int, end: int, by: int
    ) -> Value:
        ends = list(x.type.shape)
        starts, strides = [0] * len(ends), [1] * len(ends)
        starts[axis], ends[axis], strides[axis] = start, end, by
        return self._ops.slice_(x, *map(self._numbers, (starts, ends, strides)))

    def _make_broadcast(self, output: str, x: Value) -> Value:
        return self._ops.broadcast_to(x, self._shape(output))

    def _make_concat(self, output: str, *parts: Value, axis: int) -> Value:
        return self._ops.concat(axis, list(parts))

    def _make_rows(self, output: str, table: Value, index: Value) -> Value:
        at = self._ops.expand_dims(index, [index.type.rank])
        return self._ops.gather_nd(table, at)

    def _make_along(self, output: str, x: Value, index: Value, axis: int) -> Value:
        return self._ops.gather_along_axis(x, index, axis)

    def _make_write(
        self, output: str, x: Value, update: Value, at: Value, axis: int
    ) -> Value:
        """Write the rows of `update` to `x`, starting at index `at` of an axis."""
        shape, rows = list(x.type.shape), update.type.shape[axis]
        before, after = shape[:axis], shape[axis + 1 :]
        end = self._ops.broadcasting_add(at, self._numbers([rows]))
        zeros = [self._numbers([0] * len(part)) for part in (before, after)]
        starts = self._ops.concat(0, [zeros[0], at, zeros[1]])
        ends = self._ops.concat(0, [self._numbers(before), end, self._numbers(after)])
        ones = self._numbers([1] * len(shape))
        return self._ops.slice_update(x, starts, ends, ones, update)

    def _make_mean(self, output: str, x: Value, axes: list[int]) -> Value:
        return self._reduced(self._ops.reduce_mean, output, x, axes)

    def _make_sum(self, output: str, x: Value, axes: list[int]) -> Value:
        return self._reduced(self._ops.reduce_sum, output, x, axes)

    def _make_max(self, output: str, x: Value, axes: list[int]) -> Value:
        return self._reduced(self._ops.reduce_max, output, x, axes)

    def _make_min(self, output: str, x: Value, axes: list[int]) -> Value:
        return self._reduced(self._ops.reduce_min, output, x, axes)

    def _reduced(
        self, op: Callable[..., Value], output: str, x: Value, axes: list[int]
    ) -> Value:
        return self._ops.reshape(op(x, self._numbers(axes)), self._shape(output))


_BY_NAME: Final = {
    **{name: name for name in ("exp", "log", "sqrt", "rsqrt", "cos", "sin", "tanh")},
    **{name: name for name in ("sigmoid", "silu", "relu", "erf")},
    **{
        name: f"broadcasting_{name}"
        for name in (
            *("add", "sub", "mul", "divide", "maximum", "minimum", "modulo"),
            *("equal", "not_equal", "greater", "where"),
        )
    },
    "abs": "abs_",
    "not": "not_",
    "and": "broadcasting_and",
    "or": "broadcasting_or",
    "matmul": "broadcasting_batch_matmul",
}
