"""`kvc compile --pack`: add weights in a backend's own format to a bundle.

In: a bundle of plain weights, which stay in the bundle. Out: the same bundle with
additional names of packed weights, whose bytes are in a separate data file. The
backend's library packs the weights on this machine, for machines of the same kind.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvc.runtime import Packing, load
from kvc.runtime.delegates.table import packed_format, target_called, targets_of
from kvc.schema.container import (
    BundleFile,
    Content,
    Contents,
    Progress,
    SavedBundle,
    StoredBlobs,
    save_bundle,
    stored_contents,
)
from kvc.schema.dtypes import DType
from kvc.schema.errors import CannotPack, MissingLibrary, listing
from kvc.schema.model import NamedData, Program
from kvc.schema.types import TensorType
from kvc.schema.uses import PACKED


def check_pack(backends: Sequence[str], wanted: str) -> str:
    """Return the format of packed data: BACKEND:BUILD:FEATURES, or BACKEND:TARGET.

    Args:
        backends: the backend of each recipe, "" for a recipe without a backend.
        wanted: BUILD:FEATURES, which must be the format that this machine packs; or the
            name of a target that the backend makes files for, as in `kvc export
            --target`, with or without the backend's name.

    Raises:
        CannotPack: this machine does not pack the format, or nothing would be
            packed.
    """
    if len(backends) > 1:
        reason = "weights are packed for one recipe, and the bundle has several"
        raise CannotPack(wanted=wanted, reason=reason)
    (backend,) = backends
    if not backend:
        reason = "the recipe names no backend, and only backends pack weights"
        raise CannotPack(wanted=wanted, reason=reason)
    targets = targets_of(backend)
    for name in (target_called(wanted, targets), f"{backend}:{wanted}"):
        if name in targets:
            return str(name)
    if targets:
        reason = f"the backend {backend} makes files for: {listing(targets)}"
        raise CannotPack(wanted=wanted, reason=reason)
    try:
        found = packed_format(backend)
    except MissingLibrary as error:
        raise CannotPack(wanted=wanted, reason=str(error)) from error
    if not found:
        reason = f"the backend {backend} does not pack weights for bundles"
        raise CannotPack(wanted=wanted, reason=reason)
    if found != f"{backend}:{wanted}":
        here = found.partition(":")[2]
        reason = (
            f"packing is done by the library of this machine, which is {here}; give "
            "exactly that, or compile on a machine of the kind that you want"
        )
        raise CannotPack(wanted=wanted, reason=reason)
    return found


def pack_bundle(
    path: Path,
    packed_form: str,
    reuse: Iterable[Path] = (),
    progress: Progress | None = None,
) -> SavedBundle:
    """Write a bundle again, with its weights packed in a data file beside it.

    All packed weights are in memory at the same time.

    Args:
        path: path of the bundle, which is replaced at the end.
        packed_form: format of packed data, from `check_pack`.
        reuse: further data files that the bundle can refer to. The data files that it
            refers to already are found in their folders.
        progress: as in `save_bundle`.

    Raises:
        LoadError, FormatError: the bundle cannot be loaded.
        ExecutionError: the backend's library refuses a partition.
        CannotWrite, Unsynced: as `save_bundle`.
    """
    backend = packed_form.partition(":")[0]
    others = [Path(other).resolve() for other in reuse]
    places = tuple(dict.fromkeys(other.parent for other in others))
    with (
        load(path, data_folders=places, reference=False) as program,
        StoredBlobs.open(BundleFile(path), places) as stored,
    ):
        target = packed_form if packed_form in targets_of(backend) else None
        packings = program.pack(target)
        return save_bundle(
            path,
            _with_packed(stored.program, packings, packed_form),
            _contents(stored, packings),
            packed_apart=True,
            reuse=[*(file.path for file in stored.data_files), *others],
            progress=progress,
        )


def _with_packed(
    program: Program, packings: tuple[Packing, ...], packed_form: str
) -> Program:
    """Return a program with the names of packed weights after the existing names."""
    names = tuple(
        NamedData(
            name=PACKED + one.key,
            blob=0,  # until it is written
            type=TensorType(DType.UINT8, (one.nbytes,)),
            format=packed_form,
            provenance=one.weight,
        )
        for one in packings
    )
    count = len(program.names)
    delegates = tuple(
        replace(partition, names=(*partition.names, *added))
        for number, partition in enumerate(program.delegates)
        for added in [
            [i for i, p in enumerate(packings, count) if number in p.partitions]
        ]
    )
    return replace(program, names=(*program.names, *names), delegates=delegates)


def _contents(stored: StoredBlobs, packings: tuple[Packing, ...]) -> Contents:
    """Return the sources of the bytes of plain and packed names."""
    plain, count = stored_contents(stored), len(stored.program.names)

    def chunks(packing: Packing) -> Iterator[memoryview]:
        yield memoryview(packing.content())

    def content(name: int) -> Content:
        if name < count:
            return plain(name)
        packing = packings[name - count]
        return Content(packing.nbytes, partial(chunks, packing), packing.key)

    return content
