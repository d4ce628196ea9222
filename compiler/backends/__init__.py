"""The ahead-of-time halves of the backends of kvc and of other packages, by name.

A backend of another package is found if it is registered. Otherwise it is found by an
entry point with the backend's name in the group `kvc.backends`. README.md says how to
write a backend.
"""

from importlib.metadata import entry_points

from kvc.compiler.backends.base import Backend, BlockBackend
from kvc.compiler.backends.coreai import CoreAI
from kvc.compiler.backends.coreml import CoreMl
from kvc.compiler.backends.cpu import Cpu
from kvc.compiler.backends.ethosu import EthosU
from kvc.compiler.backends.mlx import Mlx
from kvc.compiler.backends.qnn import Qnn
from kvc.compiler.backends.vulkan import Vulkan
from kvc.compiler.backends.xnnpack import Xnnpack
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.schema.errors import BackendTaken, BadSetting, UnknownBackend

ENTRY_POINTS = "kvc.backends"

BACKENDS: dict[str, type[Backend]] = {
    each.name: each for each in (CoreAI, CoreMl, Cpu, EthosU, Mlx, Qnn, Vulkan, Xnnpack)
}

__all__ = [
    "BACKENDS",
    "Backend",
    "BlockBackend",
    "Lowered",
    "Partition",
    "find_backend",
    "register_backend",
]


def register_backend(backend: type[Backend]) -> None:
    """Register a backend's ahead-of-time half, so that recipes can give its `name`.

    Raises:
        BackendTaken: there is already a backend of this name.
        BadSetting: `backend` is not a subclass of `Backend`, or has no name.
    """
    name = _check(backend)
    if name in BACKENDS:
        raise BackendTaken(name=name, new=repr(backend), found=repr(BACKENDS[name]))
    BACKENDS[name] = backend


def find_backend(name: str) -> type[Backend]:
    """Return a backend by its name.

    Raises:
        UnknownBackend: no backend has this name, or its package cannot be imported.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    reason = "nothing of this name is registered or installed"
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        try:
            found: type[Backend] = entry.load()
            if _check(found) == name:
                return BACKENDS.setdefault(name, found)
            reason = f"its entry point {entry.value} is the backend {found.name!r}"
        except Exception as error:
            # Code of other packages may raise anything: the backend is not usable.
            reason = f"its entry point {entry.value} failed: {error!r}"
    raise UnknownBackend(backend=name, reason=reason, known=tuple(BACKENDS))


def _check(backend: object) -> str:
    """Return the name of a backend class.

    Raises:
        BadSetting: `backend` is not a subclass of `Backend`, or has no name.
    """
    known = isinstance(backend, type) and issubclass(backend, Backend)
    name = getattr(backend, "name", None)
    if not known or not isinstance(name, str) or not name:
        expected = "a subclass of kvc.compiler.backends.Backend with a name"
        raise BadSetting(name="backend", expected=expected, found=repr(backend))
    return name
