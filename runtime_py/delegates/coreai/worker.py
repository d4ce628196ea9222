"""Requests to the subprocess that calls Core AI; `serving.py` has the common requests.

    build   read functions from a file in the work folder, and load an asset of them
    store   write functions from a file as an asset, a folder; return the asset's files

The functions are those of `lowering/function.py`, in a file of JSON. Weights lie in a
second file of the same folder. `_BY_NAME` and `_FORMS` have Core AI's operator for each
primitive. This module imports nothing of kvc, and kvc's process does not import this
module, so a crash of the library ends only the subprocess.
"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from coreai import authoring, runtime  # before the modules that it imports
from coreai._compiler.dialects import coreai as ops
from coreai._compiler.ir import (
    ArrayAttr,
    DenseResourceElementsAttr,
    DictAttr,
    Location,
    StringAttr,
)

WEIGHTS: Final = "weights.bin"
MINIMUM_OS: Final = "v27"
_SMALL: Final = 64  # elements of a constant that is written out
_MUTATION: Final = "MutableBuffers.buffer_mutation"

Value = Any  # a tensor under construction
Thing = Any  # another object of the library, or of numpy
Tensor = tuple[type, list[int]]  # dtype and shape
Arrays = Mapping[str, Any]  # over shared memory, by the tensors' names


class Work:
    """The functions that the library has loaded."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._models: list[tuple[Any, Any]] = []
        self._functions: dict[str, Any] = {}

    def build(self, file: str) -> None:
        """Make an asset of the functions in a file, and load the functions."""
        functions = json.loads(Path(file).read_text())
        asset = make_asset(functions, Path(tempfile.mkdtemp()) / "built.aimodel")
        loading = asset.executable()
        model = self._loop.run_until_complete(loading.__aenter__())
        self._models.append((loading, model))
        names = (function["name"] for function in functions)
        self._functions |= {name: model.load_function(name) for name in names}
        shutil.rmtree(asset.path.parent)

    def store(self, file: str, folder: str) -> list[str]:
        """Write a file's functions as an asset in `folder`; return the asset files."""
        root = Path(folder)
        make_asset(json.loads(Path(file).read_text()), root)
        found = (path for path in root.rglob("*") if path.is_file())
        return sorted(path.relative_to(root).as_posix() for path in found)

    def bind(
        self, name: str, inputs: Arrays, states: Arrays, outputs: Arrays
    ) -> Callable[[], None]:
        """Return a function that runs a loaded function on arrays."""
        function = self._functions[name]
        used = {*function.desc.input_names}
        # The library drops inputs that nothing reads.
        given = {name: array for name, array in inputs.items() if name in used}
        return lambda: self._loop.run_until_complete(
            _run(function, given, states, outputs)
        )


async def _run(
    function: Thing, inputs: Arrays, states: Arrays, outputs: Arrays
) -> None:
    """Copy inputs to the library, run the function, and copy outputs back.

    Each run creates new arrays of the library, since the library does not see writes to
    an array that it has used.
    """
    given = {name: runtime.NDArray(array) for name, array in inputs.items()}
    changed = {name: runtime.NDArray(array) for name, array in states.items()}
    made = await function(given, changed)
    for found, targets in ((made, outputs), (changed, states)):
        for name, array in targets.items():
            array[...] = found[name].numpy()


def make_asset(functions: Sequence[Mapping[str, Any]], path: Path) -> Thing:
    """Write functions as an asset, which is a folder, and return the asset.

    Equal functions give equal bytes.
    """
    with authoring.Context(), Location.unknown():
        module = authoring.Module.create()
        resources: dict[str, Thing] = {}
        with module, Location.unknown():
            for function in functions:
                _Builder(function, resources).build()
        asset = authoring.AIProgram(module).save_asset(
            path, minimum_os=authoring.OSVersion(MINIMUM_OS)
        )
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
    itself would give the resources other numbers in each process.
    """

    def __init__(
        self, function: Mapping[str, Any], resources: dict[str, Thing]
    ) -> None:
        self._function, self._resources = function, resources
        self._values: dict[str, Value] = {}

    def build(self) -> None:
        """Add the graph to the open module."""
        function = self._function
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
        marked = []
        for name, given in zip(names, graph.arg_attrs, strict=True):
            found = {each.name: each.attr for each in given}
            if name in states:
                found[_MUTATION] = StringAttr.get(f"{name}_after")
            marked.append(DictAttr.get(found))
        graph.arg_attrs = ArrayAttr.get(marked)

    def _type(self, name: str) -> Thing:
        dtype, shape = self._function["tensors"][name]
        return authoring.TensorType(shape, np.dtype(dtype).type)._to_mlir()

    def _get(self, name: str) -> Value:
        """Return the tensor with a name; create a constant when first used."""
        if name not in self._values:
            array = self._constant(name)
            if array.size > _SMALL:
                made = ops.ConstantOp(value=self._resource(name, array)).result
            else:
                made = ops.constant(array)
            self._values[name] = made
        return self._values[name]

    def _resource(self, name: str, array: Thing) -> Thing:
        """Return a resource of the module, shared by all functions that use it."""
        is_weight = name in self._function["weights"]
        plain = name.removeprefix("%")
        own = plain if is_weight else f"{self._function['name']}_{plain}"
        if own not in self._resources:
            self._resources[own] = DenseResourceElementsAttr.get_from_buffer(
                array, own, self._type(name)
            )
        return self._resources[own]

    def _constant(self, name: str) -> Thing:
        dtype, shape = self._function["tensors"][name]
        if name in self._function["constants"]:
            numbers = self._function["constants"][name]
            return np.array(numbers, dtype).reshape(shape)
        at, count = self._function["weights"][name], int(np.prod(shape))
        return np.fromfile(WEIGHTS, dtype, count, offset=at).reshape(shape)

    def _step(
        self, op: str, inputs: list[str], output: str, facts: dict[str, Any]
    ) -> None:
        """Add an operator.

        Raises:
            ValueError: Core AI's operator for the primitive `op` is not listed.
        """
        given = [self._get(name) for name in inputs]
        if op in _BY_NAME:
            made = getattr(ops, _BY_NAME[op])(*given)
        elif op in _FORMS:
            dtype, shape = self._function["tensors"][output]
            made = _FORMS[op]((np.dtype(dtype).type, shape), *given, **facts)
        else:
            raise ValueError(f"no operator {op!r}")
        self._values[output] = made


def _numbers(values: Sequence[int], *, signed: bool = True) -> Value:
    return ops.constant(np.array(values, np.int32 if signed else np.uint32))


def _slice(to: Tensor, x: Value, axis: int, start: int, end: int, by: int) -> Value:
    ends = list(x.type.shape)
    starts, strides = [0] * len(ends), [1] * len(ends)
    starts[axis], ends[axis], strides[axis] = start, end, by
    return ops.slice_(x, *map(_numbers, (starts, ends, strides)))


def _write(to: Tensor, x: Value, update: Value, at: Value, axis: int) -> Value:
    """Write the rows of `update` to `x`, starting at index `at` of an axis."""
    shape, rows = list(x.type.shape), update.type.shape[axis]
    before, after = shape[:axis], shape[axis + 1 :]
    end = ops.broadcasting_add(at, _numbers([rows]))
    zeros = [_numbers([0] * len(part)) for part in (before, after)]
    starts = ops.concat(0, [zeros[0], at, zeros[1]])
    ends = ops.concat(0, [_numbers(before), end, _numbers(after)])
    ones = _numbers([1] * len(shape))
    return ops.slice_update(x, starts, ends, ones, update)


def _reduce(name: str, to: Tensor, x: Value, axes: list[int]) -> Value:
    return ops.reshape(getattr(ops, name)(x, _numbers(axes)), to[1])


# Functions of the result's dtype and shape, the operands, and the facts.
_FORMS: Final[Mapping[str, Callable[..., Value]]] = {
    **{
        name: partial(_reduce, f"reduce_{name}")
        for name in ("mean", "sum", "max", "min")
    },
    "slice": _slice,
    "write": _write,
    "gelu": lambda to, x, approximate: ops.gelu(x, approximate=approximate),
    "softmax": lambda to, x, axis: ops.softmax(x, axis),
    "cast": lambda to, x: ops.cast(x, to[0]),
    "reshape": lambda to, x: ops.reshape(x, to[1]),
    "transpose": lambda to, x, order: ops.transpose(x, _numbers(order, signed=False)),
    "broadcast": lambda to, x: ops.broadcast_to(x, to[1]),
    "concat": lambda to, *parts, axis: ops.concat(axis, list(parts)),
    "rows": lambda to, table, index: ops.gather_nd(
        table, ops.expand_dims(index, [index.type.rank])
    ),
    "along": lambda to, x, index, axis: ops.gather_along_axis(x, index, axis),
}
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
