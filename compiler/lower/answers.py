"""Check what a backend returns, which may be code of other packages."""

from collections.abc import Iterable, Mapping, Sequence

from kvc.compiler.backends.base import Backend
from kvc.compiler.ir import Constant, Method
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.schema.errors import BadBackend, listing
from kvc.schema.model import MemoryKind
from kvc.schema.types import Symbol


def supported_nodes(backend: Backend, method: Method) -> frozenset[int]:
    """Return the nodes of a method that a backend takes.

    Raises:
        BadBackend: it does not say indices of nodes.
    """
    found: object = backend.supports(method)
    where = f"supports, method {method.name}"
    if not isinstance(found, Iterable):
        raise _bad(backend, where, "a set of indices", repr(found))
    indices = list(found)
    for index in indices:
        if type(index) is not int or not 0 <= index < len(method.nodes):
            expected = f"integers from 0 to {len(method.nodes) - 1}"
            raise _bad(backend, where, expected, repr(index))
    return frozenset(indices)


def lowered_partitions(
    backend: Backend,
    partitions: Mapping[str, Sequence[Partition]],
    constants: Mapping[str, Constant],
    symbols: tuple[Symbol, ...],
) -> dict[str, tuple[Lowered, ...]]:
    """Return what a backend says of its partitions, by what calls them.

    Raises:
        BadBackend: it does not say one whole `Lowered` for each partition.
    """
    found: object = backend.lower(partitions, constants, symbols)
    if not isinstance(found, Mapping):
        expected = "a mapping from methods to what their partitions need"
        raise _bad(backend, "lower", expected, repr(found))
    if set(found) != set(partitions):
        expected = f"a key for each of the methods {listing(sorted(partitions))}"
        shown = listing(sorted(map(str, found)))
        raise _bad(backend, "lower", expected, shown)
    return {
        name: _checked(backend, f"lower, method {name}", found[name], some)
        for name, some in partitions.items()
    }


def _checked(
    backend: Backend,
    where: str,
    found: object,
    partitions: Sequence[Partition],
) -> tuple[Lowered, ...]:
    if not isinstance(found, Iterable):
        raise _bad(
            backend, where, f"a Lowered for each of {len(partitions)}", repr(found)
        )
    items = tuple(found)
    if len(items) != len(partitions):
        raise _bad(
            backend, where, f"a Lowered for each of {len(partitions)}", f"{len(items)}"
        )
    for item in items:
        if not isinstance(item, Lowered):
            raise _bad(backend, where, "each item a Lowered", repr(item))
        for expected, value, good in _facts(item):
            if not good:
                raise _bad(backend, where, expected, repr(value))
    return items


def _facts(item: Lowered) -> Iterable[tuple[str, object, bool]]:
    """Yield what must hold for a partition: (expected, found, whether it does)."""
    payload: object = item.payload
    yield "payload of bytes", payload, isinstance(payload, bytes)
    yield "memory a MemoryKind", item.memory, isinstance(item.memory, MemoryKind)
    for field in ("workspace_nbytes", "tail_nbytes"):
        nbytes = getattr(item, field)
        yield f"{field} a count", nbytes, type(nbytes) is int and nbytes >= 0


def _bad(backend: Backend, where: str, expected: str, found: str) -> BadBackend:
    return BadBackend(backend=backend.name, where=where, expected=expected, found=found)
