"""libkvc by ctypes: bundles and sessions as C sees them, with numpy arrays."""

import ctypes
import importlib.machinery
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np

import kvc.runtime.native
from kvc.schema.dtypes import DType

_CODES = """
OK BAD_ARGUMENT UNKNOWN_NAME FILE_PROBLEM CANNOT_WRITE NOT_A_BUNDLE UNSUPPORTED_VERSION
DAMAGED DATA_FILE_MISSING DATA_FILE_MISMATCH FILE_CHANGED NOT_BOUND OTHER_KERNELS
OUT_OF_MEMORY INPUT_MISMATCH STATE_MISMATCH CACHE_OVERFLOW CALL_TOO_LONG NOT_ENCODED
INDEX_OUT_OF_RANGE KERNEL_FAILED POISONED BUSY NO_POSITION NOT_REWINDABLE BAD_SNAPSHOT
INTERNAL UNUSABLE_LOGITS
"""
NAMES = dict(enumerate(_CODES.split()))


class Error(ctypes.Structure):
    _fields_ = (("code", c_int32), ("text", ctypes.c_char * 1020))


class CArray(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("dims", c_int64 * 8),
    )


class CDim(ctypes.Structure):
    _fields_ = (("lower", c_int64), ("upper", c_int64), ("text", c_char_p))


class CType(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("dims", CDim * 8),
    )


class CMethod(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("role", c_char_p),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("row_lengths", c_int32),
    )


class CSymbol(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("lower", c_int64),
        ("upper", c_int64),
        ("of_sessions", c_int32),
    )


class CSize(ctypes.Structure):
    _fields_ = (("symbol", c_char_p), ("size", c_int64))


class Refused(Exception):
    """A function of libkvc returned a code; `code` is its name."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


@cache
def library() -> ctypes.CDLL:
    """Return the library of the kernels, which has libkvc in it."""
    folder = Path(kvc.runtime.native.__file__).parent
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    paths = [folder / f"_kernels{suffix}" for suffix in suffixes]
    found = ctypes.CDLL(str(next(path for path in paths if path.exists())))
    found.kvc_session_capacity.restype = c_int64
    found.kvc_session_capacity.argtypes = (c_void_p,)
    found.kvc_close.argtypes, found.kvc_close.restype = (c_void_p,), None
    return found


def run(name: str, *arguments: object) -> None:
    """Call a function that returns a code; raise `Refused` for any but 0."""
    error = Error()
    code = getattr(library(), name)(*arguments, byref(error))
    assert code == error.code
    if code:
        raise Refused(NAMES[code], error.text.decode())


def described(array: np.ndarray | None) -> CArray:
    """Return what C is told of an array without gaps; None is one left out."""
    if array is None:
        return CArray()
    dtype = DType.from_numpy(array.dtype)
    return CArray(array.ctypes.data, int(dtype), array.ndim, tuple(array.shape))


def read(found: CArray, strides: Sequence[int] | None = None) -> np.ndarray:
    """Return a copy of an array of C."""
    dtype = np.dtype(DType(found.dtype).numpy)
    shape = tuple(found.dims[: found.rank])
    if 0 in shape:
        return np.zeros(shape, dtype)
    steps = list(np.cumprod([1, *shape[:0:-1]])[::-1]) if strides is None else strides
    reach = sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + 1
    raw = ctypes.string_at(found.data, int(reach) * dtype.itemsize)
    flat = np.frombuffer(raw, dtype)
    bytes_of = [int(s) * dtype.itemsize for s in steps]
    return np.lib.stride_tricks.as_strided(flat, shape, bytes_of).copy()


assert ml_dtypes  # numpy knows bfloat16 by it


class CSession:
    """A session."""

    def __init__(self, bundle: "CBundle", pointer: c_void_p) -> None:
        self.bundle, self.pointer = bundle, pointer

    def call(self, name: str, *args: np.ndarray | None) -> list[np.ndarray]:
        """Run a method, and return copies of its results."""
        number = self.bundle.method(name)
        given = [None if a is None else np.ascontiguousarray(a) for a in args]
        inputs = (CArray * max(1, len(args)))(*map(described, given))
        count = self.bundle.methods[number][1].outputs
        outputs = (CArray * max(1, count))()
        run("kvc_session_run", self.pointer, number, inputs, len(args), outputs, count)
        return [read(outputs[i]) for i in range(count)]

    def call_into(self, name: str, given: np.ndarray, *results: np.ndarray) -> None:
        """Run a method of one input; its results are put into arrays of the caller."""
        inputs, count = (CArray * 1)(described(given)), len(results)
        outputs = (CArray * max(1, count))(*map(described, results))
        number = self.bundle.method(name)
        run("kvc_session_run", self.pointer, number, inputs, 1, outputs, count)

    def shapes(self, name: str, *args: np.ndarray | None) -> list[tuple[int, ...]]:
        number = self.bundle.method(name)
        inputs = (CArray * max(1, len(args)))(*map(described, args))
        count = self.bundle.methods[number][1].outputs
        outputs = (CArray * max(1, count))()
        run(
            "kvc_session_shapes", self.pointer, number, inputs, len(args), outputs,
            count,
        )  # fmt: skip
        return [tuple(one.dims[: one.rank]) for one in outputs[:count]]

    def step(self, tokens: Sequence[int]) -> np.ndarray:
        """Run tokens, and return a copy of the logits after the last."""
        given = np.array(tokens, np.int64)
        logits, count = POINTER(ctypes.c_float)(), c_int64()
        at = c_void_p(given.ctypes.data)
        size = c_int64(given.size)
        run("kvc_session_step", self.pointer, at, size, byref(logits), byref(count))
        return np.ctypeslib.as_array(logits, (count.value,)).copy()

    def position(self, cursor: int = 0) -> list[int]:
        rows = c_int32(64)
        numbers = (c_int64 * 64)()
        run("kvc_session_position", self.pointer, cursor, numbers, byref(rows))
        return list(numbers[: rows.value])

    def rewindable(self) -> list[int]:
        rows = c_int32(64)
        numbers = (c_int64 * 64)()
        run("kvc_session_rewindable", self.pointer, numbers, byref(rows))
        return list(numbers[: rows.value])

    def rewind(self, *counts: int) -> None:
        given = (c_int64 * len(counts))(*counts)
        run("kvc_session_rewind", self.pointer, given, len(counts))

    def reset(self) -> None:
        run("kvc_session_reset", self.pointer)

    def fork(self) -> "CSession":
        made = c_void_p()
        run("kvc_session_fork", self.pointer, byref(made))
        return CSession(self.bundle, made)

    @property
    def capacity(self) -> int:
        return int(library().kvc_session_capacity(self.pointer))

    def state(self, name: str) -> np.ndarray:
        found, strides = CArray(), (c_int64 * 8)()
        number = self.bundle.states.index(name)
        run("kvc_session_state", self.pointer, number, byref(found), strides)
        return read(found, list(strides[: found.rank]))

    def save(self, path: Path, attached: str | None = None, pending=()) -> None:
        text = None if attached is None else attached.encode()
        tokens = (c_int64 * max(1, len(pending)))(*pending)
        count = c_int64(len(pending))
        run("kvc_session_save", self.pointer, str(path).encode(), text, tokens, count)

    def attached(self, row: int = 0) -> tuple[str, list[int]]:
        text, tokens, count = c_char_p(), POINTER(c_int64)(), c_int64()
        where = byref(text), byref(tokens), byref(count)
        run("kvc_session_attached", self.pointer, row, *where)
        assert text.value is not None
        return text.value.decode(), [tokens[i] for i in range(count.value)]

    def close(self) -> None:
        run("kvc_session_close", self.pointer)
        self.pointer = c_void_p()

    def __enter__(self) -> "CSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CBundle:
    """A bundle, opened by its path or in memory."""

    def __init__(self, path: Path | str | None, content: np.ndarray | None = None):
        self.pointer = c_void_p()
        self.content = content
        if content is None:
            run("kvc_open", str(path).encode(), byref(self.pointer))
        else:
            at, size = c_void_p(content.ctypes.data), c_size_t(content.nbytes)
            run("kvc_open_memory", at, size, byref(self.pointer))
        self.methods = []
        for number in range(library().kvc_method_count(self.pointer)):
            found = CMethod()
            run("kvc_get_method", self.pointer, number, byref(found))
            self.methods.append((found.name.decode(), found))
        count = library().kvc_state_count(self.pointer)
        self.states = [self._type("state", n).name.decode() for n in range(count)]

    def _type(self, what: str, *numbers: int) -> CType:
        found = CType()
        run(f"kvc_get_{what}", self.pointer, *numbers, byref(found))
        return found

    def type(self, what: str, *numbers: int) -> tuple[str, str, list[object]]:
        """Return the name, the dtype and the dims of an input, output or state."""
        found = self._type(what, *numbers)
        dims = [
            dim.lower if dim.text is None else (dim.text.decode(), dim.lower, dim.upper)
            for dim in found.dims[: found.rank]
        ]
        return found.name.decode(), DType(found.dtype).label, dims

    def symbols(self) -> dict[str, tuple[int, int, bool]]:
        made = {}
        for number in range(library().kvc_symbol_count(self.pointer)):
            found = CSymbol()
            run("kvc_get_symbol", self.pointer, number, byref(found))
            bounds = found.lower, found.upper, bool(found.of_sessions)
            made[found.name.decode()] = bounds
        return made

    def metadata(self, key: str) -> str:
        text = c_char_p()
        run("kvc_get_metadata", self.pointer, key.encode(), byref(text))
        assert text.value is not None
        return text.value.decode()

    def file(self, name: str) -> bytes:
        at, size = c_void_p(), c_size_t()
        run("kvc_get_file", self.pointer, name.encode(), byref(at), byref(size))
        assert at.value is not None
        return ctypes.string_at(at.value, size.value)

    def method(self, name: str) -> int:
        return int(library().kvc_find_method(self.pointer, name.encode()))

    def session(self, capacity: int = 0, **sizes: int) -> CSession:
        pairs = [CSize(name.encode(), size) for name, size in sizes.items()]
        given = (CSize * max(1, len(pairs)))(*pairs)
        made = c_void_p()
        limit = c_int64(capacity)
        where = given, len(pairs), limit, byref(made)
        run("kvc_session_open", self.pointer, *where)
        return CSession(self, made)

    def restore(self, path: Path) -> CSession:
        made = c_void_p()
        run("kvc_session_restore", self.pointer, str(path).encode(), byref(made))
        return CSession(self, made)

    def threads(self, count: int) -> None:
        run("kvc_set_threads", self.pointer, count)

    def close(self) -> None:
        library().kvc_close(self.pointer)
        self.pointer = c_void_p()

    def __enter__(self) -> "CBundle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
