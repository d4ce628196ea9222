"""Parameters without memory, and where their values are to come from.

`empty_parameters` makes parameters of modules on torch's meta device; a checkpoint
then attaches a `StoredTensor` to each. The attachment is an attribute of the Parameter
object: it goes with it, and goes with nothing else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from kvc.compiler.constants import StoredSource, StoredTensor
from kvc.schema.errors import ParametersEmpty

_ATTRIBUTE = "kvc_stored"


class Empty(Tensor):
    """A tensor on the meta device that nothing real can be computed with.

    torch has kernels that take a meta tensor beside a real one and return memory that
    nobody has written (`linear` in 2.13). What is made of an empty tensor is empty too.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an op of torch.

        Raises:
            ParametersEmpty: it needs the values of an empty tensor.
        """
        with torch._C.DisableTorchFunctionSubclass():
            mixed = _mixes(args, kwargs) and not _overwrites(func, args)
        if mixed:
            what = (
                f"{getattr(func, '__name__', func)} of an empty tensor and a real one"
            )
            raise ParametersEmpty(names=(), what=what)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: object) -> Tensor:
        """Return another tensor, whose values are in the same place."""
        copied = _empty(self)
        vars(copied).update(vars(self))
        return copied


def _mixes(*arguments: object) -> bool:
    """Tell whether there are empty tensors and real ones among arguments."""
    tensors = [t for t in tree_leaves(arguments) if isinstance(t, Tensor)]
    real = any(not t.is_meta and t.dim() for t in tensors)
    return real and any(t.is_meta for t in tensors)


def _overwrites(func: Callable[..., object], args: Sequence[object]) -> bool:
    """Tell whether an op gives an empty tensor its initial values: nothing happens."""
    name = getattr(func, "__name__", "")
    written = name == "__setitem__" or (name.endswith("_") and name[:2] != "__")
    return written and isinstance(args[0], Tensor) and args[0].is_meta


@contextmanager
def empty_parameters() -> Iterator[None]:
    """Make the parameters of modules that are built within without memory.

    Buffers stay real, and so do parameters of special classes. A parameter under two
    names stays one. An initial value is computed before the parameter is registered,
    so that memory for one of them may be needed for a moment.
    """
    made = WeakIdKeyDictionary()

    def emptied(
        module: nn.Module, name: str, parameter: nn.Parameter | None
    ) -> nn.Parameter | None:
        if type(parameter) is not nn.Parameter or parameter.is_meta:
            return None
        if parameter not in made:
            made[parameter] = _empty(parameter)
        found: nn.Parameter = made[parameter]
        return found

    # Its annotation forgets that a hook may return another parameter.
    hook = register_module_parameter_registration_hook(emptied)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()


def _empty(tensor: Tensor) -> Tensor:
    """Return an empty tensor of the type of another one, a parameter if that is one."""
    shape, stride = tensor.shape, tensor.stride()
    memory = torch.empty_strided(shape, stride, dtype=tensor.dtype, device="meta")
    empty = memory.as_subclass(Empty)
    if not isinstance(tensor, nn.Parameter):
        return empty
    return nn.Parameter(empty, requires_grad=tensor.requires_grad)


def attach(parameter: Tensor, stored: StoredTensor) -> None:
    """Say where the values of an empty parameter are."""
    setattr(parameter, _ATTRIBUTE, stored)


def attached(tensor: Tensor) -> StoredSource | None:
    """Return where the values of a parameter are; None where they are its own."""
    stored = vars(tensor).get(_ATTRIBUTE)
    return None if stored is None else StoredSource(stored, tensor.dtype)
