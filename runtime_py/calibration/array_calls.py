"""Call methods with arrays; each array has the name of the input that it is for.

In: arrays, a program. Out: calls of each method for which the file has all inputs. The
methods are called in turns on one session, so that states are as in normal use.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from kvc.runtime.calibration.token_calls import reads_tokens
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.program import Program
from kvc.schema.container import Progress
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadSamples, ExecutionError, listing, shortened
from kvc.schema.frozen import frozen
from kvc.schema.model import Method
from kvc.schema.trees import unflatten
from kvc.schema.types import TensorType

# Reading files of arrays: .npy, .npz and .safetensors


_KINDS: Final = {
    "F64": DType.FLOAT64, "F32": DType.FLOAT32, "F16": DType.FLOAT16,
    "BF16": DType.BFLOAT16, "I64": DType.INT64, "I32": DType.INT32,
    "I16": DType.INT16, "I8": DType.INT8, "U8": DType.UINT8, "BOOL": DType.BOOL,
}  # fmt: skip
MOST_NBYTES: Final = 1 << 30  # limit of a file, and of its unpacked content
_TOKENS: Final = "tokens"
_LENGTH_NBYTES: Final = 8


@frozen
class Arrays:
    """The arrays of a file.

    Attributes:
        by_name: the arrays by their names in the file; "" for the array of a .npy file.
        source: the path of the file, for messages.
    """

    by_name: Mapping[str, Array]
    source: str = ""

    def sequences_for(self, program: Program) -> Sequence[Sequence[int]] | None:
        """Return the array `tokens` as the token sequences of a language model.

        Return None if there is no such array or the program is no language model.

        Raises:
            BadSamples: the array of tokens has an impossible shape or dtype.
        """
        if set(self.by_name) not in ({_TOKENS}, {""}) or not reads_tokens(program):
            return None
        (tokens,) = self.by_name.values()
        if tokens.dtype != np.int64 or tokens.ndim not in (1, 2):
            found = f"{tokens.dtype} {list(tokens.shape)}"
            reason = f"tokens are int64 [tokens] or [sequences, tokens], not {found}"
            raise BadSamples(source=self.source, reason=reason)
        if tokens.shape[-1] < 2:
            reason = "a sequence has 2 tokens or more"
            raise BadSamples(source=self.source, reason=reason)
        return [tuple(row) for row in np.atleast_2d(tokens).tolist()]


def read_arrays(source: str, raw: bytes) -> Arrays:
    """Return the arrays of a file.

    Raises:
        BadSamples: the file is damaged, has no arrays, or an array is empty or holds a
            NaN or an infinity.
    """
    try:
        found = dict(_arrays(source, raw))
    except Exception as error:  # numpy, zipfile and zlib raise a dozen types
        reason = f"not a file of arrays, or damaged: {error}"
        raise BadSamples(source=source, reason=reason) from error
    if not found:
        raise BadSamples(source=source, reason="the file has no arrays")
    for name, array in found.items():
        _check(source, name, array)
    return Arrays(found, source)


def _check(source: str, name: str, array: Array) -> None:
    shown = f"array {name!r}" if name else "the array"
    if not array.size:
        raise BadSamples(source=source, reason=f"{shown} is empty")
    kind = DType.from_numpy(array.dtype)
    if kind is None:
        known = listing([one.label for one in DType])
        reason = f"{shown} is {array.dtype}; known are {known}"
        raise BadSamples(source=source, reason=reason)
    if kind.is_floating and not np.isfinite(array.astype(np.float64)).all():
        raise BadSamples(source=source, reason=f"{shown} holds a NaN or an infinity")


def _arrays(source: str, raw: bytes) -> Iterator[tuple[str, Array]]:
    if source.endswith(".safetensors"):
        yield from _safetensors(raw)
        return
    loaded = np.load(io.BytesIO(raw), allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        yield "", loaded
        return
    with loaded as archive:
        nbytes = sum(entry.file_size for entry in archive.zip.infolist())
        if nbytes > MOST_NBYTES:
            raise ValueError(f"it unpacks to {nbytes} bytes, more than {MOST_NBYTES}")
        for name in archive.files:
            array = archive[name]
            if not isinstance(array, np.ndarray):
                raise TypeError(f"{name!r} is not an array")
            yield name, array


def _safetensors(raw: bytes) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of a .safetensors file.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: the file is damaged.
    """
    start = _LENGTH_NBYTES + int.from_bytes(raw[:_LENGTH_NBYTES], "little")
    if start > len(raw):
        raise ValueError(f"{len(raw)} bytes, its header ends at {start}")
    described = json.loads(raw[_LENGTH_NBYTES:start])
    if not isinstance(described, dict):
        raise TypeError("its header names no tensors")
    for name, entry in described.items():
        if name == "__metadata__":
            continue
        dtype = _KINDS[entry["dtype"]].numpy
        begin, end = map(int, entry["data_offsets"])
        shape = tuple(int(size) for size in entry["shape"])
        if not 0 <= begin <= end <= len(raw) - start or min(shape, default=0) < 0:
            raise ValueError(f"tensor {name!r} lies outside of the file")
        if end - begin != prod(shape) * dtype.itemsize:
            raise ValueError(f"tensor {name!r} of {shape} has {end - begin} bytes")
        flat = np.frombuffer(raw[start + begin : start + end], dtype)
        yield name, flat.reshape(shape)


# Calls with arrays


@frozen
class _Calls:
    """The calls of one method, with the values of the method's inputs.

    Attributes:
        method: the method to call.
        given: for each input an array [calls, ...], with one entry for each call.
    """

    method: Method
    given: tuple[Array, ...]

    def arguments(self, call: int) -> dict[str, object]:
        """Return the arguments of call number `call`, by name of the input.

        An array with one entry serves every call.
        """
        leaves = [array[min(call, len(array) - 1), ...] for array in self.given]
        tree = json.loads(self.method.input_tree)["arguments"]
        return {name: unflatten(json.dumps(one), leaves) for name, one in tree}


def call_with(arrays: Arrays, program: Program, progress: Progress) -> int:
    """Call the methods of a program; return how often each method was called.

    Raises:
        BadSamples: an array fits no input, or an input of a method has no array.
        KvcError: as `Session.call`.
    """
    calls = _calls_of(arrays, program)
    count = max(len(array) for one in calls for array in one.given)
    for one in calls:
        for name, array in zip(one.method.input_names, one.given, strict=True):
            if len(array) not in (1, count):
                reason = (
                    f"input {name} of method {one.method.name} has {len(array)} "
                    f"samples, another one {count}"
                )
                raise BadSamples(source=arrays.source, reason=reason)
    with program.session() as session:
        for turn in range(count):
            progress("calibrate", turn, count, f"call {turn + 1} of {count}")
            for one in calls:
                try:
                    session.call(one.method.name, **one.arguments(turn))
                except ExecutionError as error:
                    reason = f"sample {turn}: {error}"
                    raise BadSamples(source=arrays.source, reason=reason) from error
    return count


def _calls_of(arrays: Arrays, program: Program) -> list[_Calls]:
    known: dict[str, TensorType] = {}
    calls, used = list[_Calls](), set[str]()
    for method in program.methods.values():
        types = _input_types(method)
        known |= {f"{method.name}.{name}": kind for name, kind in types.items()}
        found = _found(arrays.by_name, program, method)
        used |= set(found.values())
        if not found:
            continue
        lacking = [name for name in types if name not in found]
        if lacking:
            reason = f"method {method.name} also has the inputs {listing(lacking)}"
            raise BadSamples(source=arrays.source, reason=reason)
        given = tuple(
            _stacked(arrays, found[name], kind) for name, kind in types.items()
        )
        calls.append(_Calls(method, given))
    unknown = sorted(arrays.by_name.keys() - used)
    if unknown or not calls:
        shown = shortened([repr(name) for name in unknown])
        reason = (
            f"no input is called {shown}; inputs, with their methods, are "
            f"{shortened([*known])}"
        )
        raise BadSamples(source=arrays.source, reason=reason)
    return calls


def _input_types(method: Method) -> dict[str, TensorType]:
    graph = method.graph
    types = [graph.values[value].type for value in graph.inputs]
    return dict(zip(method.input_names, types, strict=True))


def _found(
    by_name: Mapping[str, Array], program: Program, method: Method
) -> dict[str, str]:
    """Return name of an input -> name of its array: `METHOD.INPUT`, or else `INPUT`."""
    found = {}
    for name in method.input_names:
        spelled = [f"{method.name}.{name}", name]
        if len(program.methods) == 1 and len(method.input_names) == 1:
            spelled.append("")
        match = next((one for one in spelled if one in by_name), None)
        if match is not None:
            found[name] = match
    return found


def _stacked(arrays: Arrays, name: str, kind: TensorType) -> Array:
    """Return an array as [calls, ...].

    Raises:
        BadSamples: the array's dtype or number of axes does not fit the input.
    """
    array = arrays.by_name[name]
    rank = len(kind.dims)
    if DType.from_numpy(array.dtype) is kind.dtype and array.ndim in (rank, rank + 1):
        return array if array.ndim > rank else array[None]
    reason = (
        f"array {name!r} is {array.dtype} {list(array.shape)}; the input is {kind}, "
        "and an array may have one more axis, for samples"
    )
    raise BadSamples(source=arrays.source, reason=reason)
