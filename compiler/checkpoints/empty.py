"""Parameters without memory: `empty_parameters` makes them on torch's meta device.

Such parameters cannot take part in real computations. Once a checkpoint has recorded
the source of their values (`filled.py`), changing them is refused, since nothing would
store the change. Casts are allowed and recorded.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from kvc.compiler.checkpoints.filled import carry, forget, is_filled
from kvc.schema.errors import ParametersEmpty

_TYPES: Final = (nn.Parameter, Tensor)
# Attribute on the storage of an empty tensor: its original storage.
_WAS: Final = "kvc_was"
# Results of these have the values of their first operand, but for a cast.
_SAME_VALUES: Final = frozenset(
    [
        "to",
        "type",
        "type_as",
        "half",
        "float",
        "double",
        "bfloat16",
        "bool",
        "char",
        "short",
        "int",
        "long",
        "clone",
        "contiguous",
        "detach",
    ]
)
# Functions that need neither values nor return a tensor; most calls.
_OF_THE_TYPE: Final = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in ("is_meta", "shape", "dtype")),
        *(getattr(Tensor, name).__get__ for name in ("device", "layout", "itemsize")),
        *(Tensor.untyped_storage, Tensor.storage_offset, Tensor.stride),
        *(Tensor.numel, Tensor.dim, Tensor.size, Tensor.is_inference),
    ]
)
# Whether a method is being traced; stand-ins should then replace empty tensors.
_tracing: ContextVar[bool] = ContextVar("kvc_tracing", default=False)


class Empty(Tensor):
    """A tensor on the meta device that cannot take part in real computations.

    torch has kernels that take a meta tensor beside a real one and return uninitialized
    memory (`linear` in 2.13). The result of an operation on an empty tensor is empty
    too.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operator of torch that has an empty tensor among its arguments.

        Raises:
            ParametersEmpty: the operator needs the values of an empty tensor, or
                changes values that a checkpoint gave.
        """
        if func in _OF_THE_TYPE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, dict(kwargs or {})))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        name = getattr(func, "__name__", str(func))
        with torch._C.DisableTorchFunctionSubclass():
            if not (_tracing.get() or _overwrites(name, args)) and _mixes(tensors):
                raise _mixed(name)
            before = [(tensor, _version(tensor)) for tensor in tensors]
        run = super().__torch_function__
        result = _run(name, lambda: run(func, types, args, kwargs or {}))  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunctionSubclass():
            _check_kept(name, before)
            return _result(name, args, result)

    def __deepcopy__(self, memo: dict[object, object]) -> Tensor:
        """Return another empty tensor with the same source of values."""
        storages = memo.setdefault(Empty, {})
        assert isinstance(storages, dict)
        copied = _empty(self, storages)
        vars(copied).update(vars(self))
        carry(self, copied)
        return copied


def _mixes(tensors: Sequence[Tensor]) -> bool:
    """Tell whether both empty and real tensors occur; real scalars do not count."""
    real = any(not t.is_meta and (t.dim() or t.is_inference()) for t in tensors)
    return real and any(t.is_meta for t in tensors)


def _overwrites(name: str, args: Sequence[object]) -> bool:
    """Tell whether an operator overwrites its first argument, if that is empty."""
    written = name == "__setitem__" or (name.endswith("_") and name[:2] != "__")
    return written and any(isinstance(a, Tensor) and a.is_meta for a in args[:1])


def _version(tensor: Tensor) -> int:
    """Return a number that changes when a tensor is changed in place."""
    return 0 if tensor.is_inference() else tensor._version


def _mixed(name: str) -> ParametersEmpty:
    return ParametersEmpty(names=(), what=f"{name} of an empty tensor and a real one")


def _run(name: str, run: Callable[[], object]) -> object:
    """Run an operator; in a trace, refuse all but those that read a dtype or shape.

    Raises:
        ParametersEmpty: a traced method uses an empty tensor.
    """
    if not _tracing.get():
        return run()
    met = f"{name} of an empty tensor, met while the model was traced"
    try:
        result = run()
    except RuntimeError as error:  # the tracer cannot handle the operator
        raise ParametersEmpty(names=(), what=met) from error
    if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
        raise ParametersEmpty(names=(), what=met)
    return result


def _check_kept(name: str, before: Sequence[tuple[Tensor, int]]) -> None:
    """Check that an operator has changed neither a real nor a filled tensor.

    A filled tensor is an empty tensor whose values are in a checkpoint. `before`: the
    tensors that the operator takes, with their versions before it ran.

    Raises:
        ParametersEmpty: the operator has changed such a tensor. A filled tensor loses
            its values in this case.
    """
    mixed = any(tensor.is_meta for tensor, _ in before)
    for tensor, version in before:
        if _version(tensor) == version:
            continue
        if tensor.is_meta and is_filled(tensor):
            known = forget(tensor) or f"a tensor of shape {list(tensor.shape)}"
            what = (
                f"{name} would change {known}, which is read-only since a checkpoint "
                "was loaded into it: change the checkpoint, or load it again"
            )
            raise ParametersEmpty(names=(known,), what=what)
        if mixed and not tensor.is_meta:
            raise _mixed(name)


def _result(name: str, args: Sequence[object], result: object) -> object:
    """Return an operator's result; keep the source of values through a cast."""
    if not isinstance(result, Tensor) or not args or not isinstance(args[0], Tensor):
        return result
    if not result.is_meta:
        return result.as_subclass(Tensor) if type(result) is Empty else result
    if name in _SAME_VALUES and result.shape == args[0].shape and args[0].is_meta:
        carry(args[0], result)
    return result


@contextmanager
def refused_in_traces() -> Iterator[None]:
    """Raise a distinct error if a method traced in this context uses an `Empty`."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


@contextmanager
def empty_parameters() -> Iterator[None]:
    """Make the parameters of modules built in this context, by this thread, empty.

    Buffers stay real, and so do parameters of special classes. A parameter with two
    names stays one parameter. The initial value of a parameter is computed before the
    parameter becomes empty, so memory for one parameter at a time is needed. After
    `Checkpoint.load_into`, empty parameters can be cast, but not changed.
    """
    made, thread = WeakIdKeyDictionary(), threading.get_ident()
    storages: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}

    def emptied(
        module: nn.Module, name: str, parameter: nn.Parameter | None
    ) -> nn.Parameter | None:
        if type(parameter) is not nn.Parameter or parameter.is_meta:
            return None
        if threading.get_ident() != thread:
            return None
        if parameter not in made:
            made[parameter] = _empty(parameter, storages)
            vars(made[parameter]).update(vars(parameter))
        found: nn.Parameter = made[parameter]
        return found

    # The annotation does not allow that a hook returns another parameter.
    hook = register_module_parameter_registration_hook(emptied)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()


def _empty(
    tensor: Tensor,
    storages: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]],
) -> Tensor:
    """Return an empty tensor like `tensor`; a parameter if `tensor` is a parameter.

    Args:
        tensor: the tensor to imitate.
        storages: id of an original storage -> a weak reference to it, and the storage
            made for it. The weak reference prevents that the id is reused, but does not
            keep the memory.
    """
    real = tensor.untyped_storage()
    if real._cdata not in storages:
        was = StorageWeakRef(real)  # type: ignore[no-untyped-call]
        storage = torch.UntypedStorage(real.nbytes(), device="meta")  # type: ignore[no-untyped-call]
        setattr(storage, _WAS, was)
        storages[real._cdata] = was, storage
    _, storage = storages[real._cdata]
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    with torch.inference_mode(mode=False), torch.no_grad():
        memory = torch.empty(0, dtype=tensor.dtype, device="meta")
        empty = memory.set_(storage, *place).as_subclass(Empty)
        if not isinstance(tensor, nn.Parameter):
            return empty
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)


def can_be_empty(tensor: Tensor) -> bool:
    """Tell whether a tensor on the meta device is an `Empty` or can be made one."""
    return type(tensor) in (Empty, *_TYPES) and not tensor.is_inference()


def make_empty(tensor: Tensor) -> None:
    """Convert a tensor on the meta device to an `Empty`, unless it is one already."""
    if type(tensor) is Empty:
        return
    is_parameter = isinstance(tensor, nn.Parameter)
    tensor.__class__ = Empty
    if is_parameter:
        tensor._is_param = True


def storage_before(tensor: Tensor) -> int | None:
    """Return the id of the storage that an empty tensor had before it was empty.

    The result is None for any other tensor.
    """
    was = getattr(tensor.untyped_storage(), _WAS, None) if tensor.is_meta else None
    return None if was is None else int(was.cdata)
