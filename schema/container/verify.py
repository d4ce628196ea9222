"""Check every byte of a bundle with its data files, or of a data file alone."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from kvc.schema.container.bundle_file import BundleFile
from kvc.schema.container.data_file import DataFileReader
from kvc.schema.container.kinds import DATA_MAGIC
from kvc.schema.container.lookup import Folder
from kvc.schema.container.opened import OpenFile
from kvc.schema.container.stored_blobs import StoredBlobs
from kvc.schema.digests import streamed_digest
from kvc.schema.errors import DigestMismatch
from kvc.schema.model import Program
from kvc.schema.two_threads import share


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found whole.

    Attributes:
        program: None for a data file alone.
        digest: of the program, or of the data file's index, in hexadecimal.
        blobs: how many.
        files: path and size of each file, the one that was given first.
    """

    program: Program | None
    digest: str
    blobs: int
    files: tuple[tuple[str, int], ...]


def verify_file(path: Folder, folders: Iterable[Folder] = ()) -> Verified:
    """Check all of a bundle and its data files, or of a data file.

    Raises:
        as `verify_bundle`.
    """
    with OpenFile(path) as file:
        magic = file.pread(0, min(len(DATA_MAGIC), file.size))
    if magic == DATA_MAGIC:
        return verify_data_file(path)
    return verify_bundle(path, folders)


def verify_bundle(path: Folder, folders: Iterable[Folder] = ()) -> Verified:
    """Check all of a bundle and its data files, and memory by brute force.

    Raises:
        FileProblem: a file cannot be read.
        DataFileMissing, DataFileMismatch: a data file is not there.
        FormatError: something is wrong with a file.
    """
    bundle = BundleFile(path, thorough=True)
    with StoredBlobs.open(bundle, folders) as stored:
        blobs = stored.program.blobs
        used = {blob.digest for blob in blobs if blob.file}
        checks: list[Callable[[], None]] = [
            partial(stored.check, blob) for blob in range(len(blobs))
        ]
        for file in stored.data_files:
            checks += _checks(file, leave_out=used)
        _run(checks)
        files = tuple((file.path, file.size) for file in stored.files)
        return Verified(stored.program, bundle.digest, len(blobs), files)


def verify_data_file(path: Folder) -> Verified:
    """Check all of a data file.

    Raises:
        FileProblem: it cannot be read.
        FormatError: something is wrong with it.
    """
    with DataFileReader(path) as file:
        check_data(file)
        files = ((file.path, file.size),)
        return Verified(None, file.digest.hex(), len(file.blobs), files)


def check_data(file: DataFileReader) -> None:
    """Check every blob and padding of an open data file; raises `FormatError`."""
    _run(_checks(file, leave_out=()))


def _checks(
    file: DataFileReader, leave_out: Collection[bytes]
) -> list[Callable[[], None]]:
    """Return the checks of all blobs of a data file but those of some digests."""
    return [
        partial(check_entry, file, i)
        for i, entry in enumerate(file.blobs)
        if entry.digest not in leave_out
    ]


def _run(checks: Sequence[Callable[[], None]]) -> None:
    """Run checks in two threads: most blobs are too small for two by themselves."""

    def work(todo: Iterator[Callable[[], None]]) -> None:
        for check in todo:
            check()

    share(iter(checks), work)


def check_entry(file: DataFileReader, i: int) -> None:
    """Check a blob of a data file, by its place in the index, and its padding.

    Raises:
        FormatError: it is damaged.
        FileProblem: it cannot be read.
    """
    entry = file.blobs[i]
    file.check_zeros(file.layout.padding[i], entry.offset)

    def fill(start: int, view: memoryview) -> None:
        file.pread_into(entry.offset + start, view)

    if streamed_digest(entry.nbytes, fill) != entry.digest:
        raise DigestMismatch(
            path=file.path, what=f"blob {i}", nbytes=entry.nbytes, offset=entry.offset
        )
