"""Trace equal methods of equal models only once, in tests that are not about tracing.

Tracing is nine tenths of the time in which a small model is compiled. Tests compile the
same models by many recipes and for many ways to run a session, and differ only in the
steps after the trace. Two models are equal if their pickles are equal. A pickle has the
classes, attributes, and tensors with their bytes and shared memory. It also has the
code and closures of functions within functions and of scripts, and the numbers and
methods of classes of tests. A model that cannot be pickled, such as one with a class
within a function, is traced each time, and so is a model whose trace fails. Globals
that a method reads are not compared: a test that replaces a global needs a class within
a function.
"""

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from types import CellType, CodeType, FunctionType

import pytest
import torch
from torch import Tensor, nn

from kvc.compiler import pipeline
from kvc.compiler.checkpoints.filled import attached
from kvc.compiler.trace import CapturedMethod, capture

MOST = 300  # traces that are remembered
# Of objects that cannot be pickled; which of them depends on the object.
UNKNOWN = (pickle.PickleError, AttributeError, RuntimeError, TypeError, ValueError)
_known: OrderedDict[bytes, CapturedMethod] = OrderedDict()


@contextmanager
def captured_once() -> Iterator[None]:
    """Make the compiler remember traces while this context lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "capture", _capture)
        yield


def _capture(model, method, states=()) -> CapturedMethod:
    try:
        key = _key(model, method, tuple(states))
    except UNKNOWN:
        return capture(model, method, states)
    if key not in _known:
        _known[key] = capture(model, method, states)
        if len(_known) > MOST:
            _known.popitem(last=False)
    _known.move_to_end(key)
    return _known[key]


def _key(*given: object) -> bytes:
    """Return a key that only equal objects share.

    Raises:
        Exception: whether objects are equal cannot be told; one of `UNKNOWN`.
    """
    written = BytesIO()
    _Describing(written).dump((*given, torch.get_default_dtype()))
    return hashlib.sha256(written.getbuffer()).digest()


def _may_change(module: type[nn.Module]) -> bool:
    """Tell whether a class is from kvc or its tests, so that tests may change it."""
    packages = ("torch.", "transformers.")
    return not module.__module__.startswith(packages) and "<" not in module.__qualname__


def _own(module: type[nn.Module]) -> tuple[object, ...]:
    kinds = (bool, int, float, str, tuple, FunctionType)
    own = [pair for pair in sorted(vars(module).items()) if isinstance(pair[1], kinds)]
    return module.__bases__, own


class _Describing(pickle.Pickler):
    """Pickler for keys, whose output is never read.

    It writes objects that a plain pickler refuses, or writes by their address.
    """

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self._numbers: dict[int, int] = {}

    def reducer_override(self, given: object) -> object:
        match given:
            case Tensor():
                return tuple, (self._tensor(given),)
            case FunctionType() if "<" in f"{given.__module__}.{given.__qualname__}":
                parts = given.__code__, given.__closure__, given.__defaults__
                return tuple, ((given.__module__, *parts, given.__kwdefaults__),)
            case type() if issubclass(given, nn.Module) and _may_change(given):
                return tuple, ((given.__module__, given.__qualname__, *_own(given)),)
            case CellType():
                return tuple, ((given.cell_contents,),)
            case CodeType():
                where = given.co_filename, given.co_firstlineno, given.co_qualname
                parts = given.co_code, given.co_consts, given.co_names
                return tuple, ((*where, *parts),)
        return NotImplemented

    def _tensor(self, given: Tensor) -> tuple[object, ...]:
        """Return what identifies a tensor: dtype, geometry, digest of its memory.

        Raises:
            PicklingError: the tensor may have further properties that matter.
        """
        plain = type(given) in (Tensor, nn.Parameter) and given.device.type == "cpu"
        # Of a tensor that is attached to a file, the values are there.
        if not plain or attached(given) or given.layout != torch.strided:
            raise pickle.PicklingError("more than its bytes matter")
        geometry = tuple(given.shape), given.stride(), given.storage_offset()
        kind = type(given).__name__, given.dtype, given.requires_grad
        return *kind, *geometry, *self._memory(given), vars(given)

    def _memory(self, tensor: Tensor) -> tuple[int, bytes]:
        storage = tensor.untyped_storage()
        if storage._cdata in self._numbers:
            return self._numbers[storage._cdata], b""
        number = self._numbers[storage._cdata] = len(self._numbers)
        content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        return number, hashlib.sha256(content).digest()
