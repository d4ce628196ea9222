"""The run-time parts of backends, by name: those of kvc and of other packages.

A package that is not kvc can register its backend, or declare an entry point in the
group `kvc.delegates` with the backend's name. Entry points are searched only for names
that are not registered. A bundle can thus only name installed backends.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from importlib import import_module
from typing import Final

from kvc.runtime.execution.delegate import Delegate, FoundDevice, NeededLibrary
from kvc.schema.errors import (
    BackendTaken,
    BadSetting,
    ExecutionError,
    KvcError,
    LoadError,
    MissingDelegate,
    MissingPackage,
    listing,
)
from kvc.schema.model import Delegate as Partition
from kvc.schema.model import Program


class Ready(IntEnum):
    """How ready a backend is to run on this machine; the best value comes first."""

    YES = 0  # its library, and a device if it needs one, are present
    BY_SOFTWARE = 1  # its only device is software
    BY_REFERENCE = 2  # its library or a device is missing
    NOT_INSTALLED = 3


ENTRY_POINTS = "kvc.delegates"

Factory = type[Delegate]

# Run-time classes by name; a string is imported when a bundle first names it.
DELEGATES: dict[str, Factory | str] = {
    "coreai": "kvc.runtime.delegates.coreai:CoreAI",
    "coreml": "kvc.runtime.delegates.coreml:CoreMl",
    "cpu": "kvc.runtime.delegates.cpu:Cpu",
    "ethosu": "kvc.runtime.delegates.ethosu:EthosU",
    "mlx": "kvc.runtime.delegates.mlx:Mlx",
    "qnn": "kvc.runtime.delegates.qnn:Qnn",
    "vulkan": "kvc.runtime.delegates.vulkan:Vulkan",
    "xnnpack": "kvc.runtime.delegates.xnnpack:Xnnpack",
}
_OWN: Final = frozenset(DELEGATES)  # kvc's own backends


def register_delegate(name: str, factory: Factory) -> None:
    """Register a backend's run-time class, for every bundle that is loaded later.

    Args:
        name: name of the backend in recipes and bundles.
        factory: the class; it is called with `Options` each time that the resources of
            a program are created.

    Raises:
        BackendTaken: a backend of this name exists already.
        BadSetting: the name is not a string, or the factory is not a class.
    """
    _check(name, factory)
    if name in DELEGATES:
        raise BackendTaken(name=name, new=repr(factory), found=repr(delegate_of(name)))
    DELEGATES[name] = factory


def _check(name: object, factory: object) -> None:
    if not isinstance(name, str) or not name:
        raise BadSetting(name="name", expected="a name", found=repr(name))
    if not isinstance(factory, type):
        raise BadSetting(name="factory", expected="a class", found=repr(factory))


def check_backends(program: Program, path: str, reference: bool | None = None) -> None:
    """Check that the backends of all partitions are installed.

    Args:
        program: the verified program.
        path: path of the bundle, for messages.
        reference: False to check that the libraries of the backends are present, too.

    Raises:
        MissingDelegate: a backend is missing; the error names the first one.
        LoadError: a library is missing.
    """
    checked = set()
    for partition in program.delegates:
        if partition.backend in checked:
            continue
        checked.add(partition.backend)
        factory = _find(partition, program, path)
        if reference is False:
            factory.check_library()


def check_device(program: Program, path: str, device: str | None) -> dict[str, int]:
    """Return the number of the requested device, by the name of the device's backend.

    Args:
        program: the verified program; its backends are installed.
        path: path of the bundle, for messages.
        device: `BACKEND:NUMBER`; None if none is requested.

    Raises:
        BadSetting: the bundle has no partition for this backend, or the device does not
            exist or cannot be used.
        MissingLibrary: the library that would find the device is missing.
    """
    if device is None:
        return {}
    own = {each.backend: each for each in program.delegates}
    known: list[str] = []
    for name, partition in own.items():
        if str(device).partition(":")[0] != name:
            continue
        for number, found in enumerate(_find(partition, program, path).devices()):
            known.append(f"{found.name} ({found.missing or found.what})")
            if found.name == device and not found.missing:
                return {name: number}
    expected = f"a device of a backend that the bundle uses, here {listing(known)}"
    raise BadSetting(name="device", expected=expected, found=repr(device))


def how_ready(backend: str) -> Ready:
    """Return how ready a backend is on this machine; this can load its library."""
    factory = _look_up(backend)
    if isinstance(factory, str):
        return Ready.NOT_INSTALLED
    try:
        usable = [each for each in factory.devices() if not each.missing]
        if usable:
            software = all(each.software for each in usable)
            return Ready.BY_SOFTWARE if software else Ready.YES
        factory.check_library()
    except MissingPackage:  # PyTorch, which it needs to compute
        return Ready.NOT_INSTALLED
    except (LoadError, ExecutionError):  # missing, or a driver that refuses
        return Ready.BY_REFERENCE
    return Ready.YES


def what_it_lacks(backend: str) -> tuple[Ready, str]:
    """Return how ready a backend is on this machine, and words for what is missing.

    The words are "" if nothing is missing. This can load the backend's library.
    """
    factory = _look_up(backend)
    if isinstance(factory, str):
        return Ready.NOT_INSTALLED, factory
    ready = how_ready(backend)
    if ready in (Ready.YES, Ready.BY_SOFTWARE):
        return ready, ""
    try:
        factory.check_library()
        lacking = "; ".join(each.missing for each in factory.devices() if each.missing)
    except (LoadError, ExecutionError) as error:
        lacking = str(error)
    return ready, lacking


def runs_on(backend: str) -> str:
    """Return a description of the device that a backend computes on."""
    factory = _look_up(backend)
    return backend if isinstance(factory, str) else factory.runs_on or backend


def library_of(backend: str) -> NeededLibrary | None:
    """Return the library that a backend needs to run; None if it needs no library.

    A backend of another package is itself what is needed, unless it is registered and
    names a library.
    """
    needed = delegate_of(backend).needs if backend in DELEGATES else None
    if needed is None and backend not in _OWN:
        return NeededLibrary(f"the backend {backend} of another package", "")
    return needed


def exports_folder(backend: str) -> bool:
    """Tell whether a backend exports folders instead of files."""
    factory = _look_up(backend)
    return not isinstance(factory, str) and factory.exports_folder


def find_devices() -> Iterator[tuple[str, Sequence[FoundDevice] | KvcError]]:
    """Yield pairs (backend, its devices), for backends whose devices have names.

    If a backend's search for devices fails, the error takes the place of the devices.
    """
    for name in (*DELEGATES,):
        try:
            found: Sequence[FoundDevice] | KvcError = delegate_of(name).devices()
        except (LoadError, ExecutionError) as error:
            found = error
        if found:
            yield name, found


def delegate_of(name: str) -> Factory:
    """Return the run-time class of a backend that is in the table."""
    known = DELEGATES[name]
    if isinstance(known, str):
        module, _, own_name = known.partition(":")
        known = DELEGATES[name] = getattr(import_module(module), own_name)
    return known


def packed_format(backend: str) -> str:
    """Return the format of the data that a backend packs on this machine.

    Returns "" for a backend that is not installed, or that packs no data into bundles.

    Raises:
        MissingLibrary: a library that the backend needs cannot be used.
    """
    found = _look_up(backend)
    return "" if isinstance(found, str) else found.packed_format()


def targets_of(backend: str) -> tuple[str, ...]:
    """Return the targets a backend exports for on this machine, as BACKEND:TARGET."""
    found = _look_up(backend)
    targets = () if isinstance(found, str) else found.targets()
    return tuple(f"{backend}:{target}" for target in targets)


def target_called(name: object, known: Sequence[str]) -> object:
    """Return the target that a name means, as BACKEND:TARGET.

    The name of a backend alone means the backend's only target, if it has just one.

    Args:
        name: the given name; an unknown one is returned unchanged.
        known: targets, as `targets_of` returns them.
    """
    own = [one for one in known if one.partition(":")[0] == name]
    return own[0] if len(own) == 1 else name


def check_target(program: Program, target: object) -> tuple[str, str]:
    """Return the backend of a program that exports for a target, and the target's name.

    The name of a backend means the backend's only target, if it has just one.

    Raises:
        BadSetting: no backend of the program exports for the target.
    """
    known = [one for backend in program.backends for one in targets_of(backend)]
    target = target_called(target, known)
    if not isinstance(target, str) or target not in known:
        here = listing(known) if known else "none"
        expected = f"a target that a backend of the bundle makes files for, here {here}"
        raise BadSetting(name="target", expected=expected, found=repr(target))
    backend, _, name = target.partition(":")
    return backend, name


def _find(partition: Partition, program: Program, path: str) -> Factory:
    """Return the run-time class of a partition's backend."""
    found = _look_up(partition.backend)
    if not isinstance(found, str):
        return found
    raise MissingDelegate(
        path=path,
        method=program.methods[partition.method].name,
        backend=partition.backend,
        reason=found,
        known=listing(list(DELEGATES)),
    )


def _look_up(name: str) -> Factory | str:
    """Return the run-time class of a backend, or why there is none."""
    if name in DELEGATES:
        return delegate_of(name)
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    reason = "nothing of this name is registered or installed"
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        try:
            factory: Factory = entry.load()
        except Exception as error:
            # Any error of foreign code: the bundle cannot run here.
            reason = f"its entry point {entry.value} failed: {error!r}"
        else:
            DELEGATES.setdefault(name, factory)
            return delegate_of(name)
    return reason
