"""Check every byte of a bundle with its data files, or of a data file alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from kvc.schema.container.bundle_file import BundleFile, DataFileReader
from kvc.schema.container.kinds import DATA_MAGIC
from kvc.schema.container.open_file import Folder, OpenFile
from kvc.schema.container.stored_blobs import StoredBlobs
from kvc.schema.frozen import frozen
from kvc.schema.model import Program
from kvc.schema.two_threads import share

Checks = list[Callable[[], None]]


@frozen
class Verified:
    """Summary of files that passed all checks.

    Attributes:
        program: the program of the bundle; None if only a data file was checked.
        digest: the digest of the program, or of the data file's index, in hexadecimal.
        blobs: the number of blobs.
        files: path and size in bytes of each file; the file that the caller named comes
            first.
    """

    program: Program | None
    digest: str
    blobs: int
    files: tuple[tuple[str, int], ...]


def verify_file(path: Folder, folders: Folder | Iterable[Folder] = ()) -> Verified:
    """Check every byte of a bundle and its data files, or of a data file.

    Raises:
        The errors of `verify_bundle`.
    """
    with OpenFile(path) as file:
        magic = file.pread(0, min(len(DATA_MAGIC), file.size))
    if magic == DATA_MAGIC:
        return verify_data_file(path)
    return verify_bundle(path, folders)


def verify_bundle(path: Folder, folders: Folder | Iterable[Folder] = ()) -> Verified:
    """Check every byte of a bundle and its data files, and the bundle's memory plan.

    The memory plan is checked by brute force.

    Raises:
        FileProblem: a file cannot be read.
        DataFileMissing, DataFileMismatch: a data file is not found.
        FormatError: a file is wrong.
    """
    bundle = BundleFile(path, thorough=True)
    with StoredBlobs.open(bundle, folders, whole=True) as stored:
        blobs = stored.program.blobs
        checks: Checks = [
            partial(stored.check, i) for i, blob in enumerate(blobs) if not blob.file
        ]
        for number, file in enumerate(stored.data_files, 1):
            checks += _checks(file, _descriptions(stored, number))
        _run(checks)
        files = tuple((file.path, file.size) for file in stored.files)
        return Verified(stored.program, bundle.digest, len(blobs), files)


def verify_data_file(path: Folder) -> Verified:
    """Check every byte of a data file.

    Raises:
        FileProblem: the file cannot be read.
        FormatError: the file is wrong.
    """
    with DataFileReader(path) as file:
        check_data(file)
        files = ((file.path, file.size),)
        return Verified(None, file.digest.hex(), len(file.blobs), files)


def check_data(file: DataFileReader) -> None:
    """Check all blobs and padding of an open data file; raise `FormatError`."""
    _run(_checks(file, {}))


def _descriptions(stored: StoredBlobs, number: int) -> dict[int, str]:
    """Return the names, for messages, of a program's blobs in a data file.

    The result has the names of each blob by the blob's offset in the data file.
    """
    return {
        blob.offset: stored.describe(i)
        for i, blob in enumerate(stored.program.blobs)
        if blob.file == number and blob.nbytes
    }


def _checks(file: DataFileReader, descriptions: Mapping[int, str]) -> Checks:
    """Return a function for each blob of a data file, which checks the blob.

    It also checks the padding before the blob.
    """
    return [
        partial(
            file.check_blob,
            blob,
            file.layout.padding[i],
            descriptions.get(blob.offset, f"blob {i}"),
        )
        for i, blob in enumerate(file.blobs)
    ]


def _run(checks: Sequence[Callable[[], None]]) -> None:
    """Run checks in two threads; most blobs are too small to be split among threads."""

    def work(todo: Iterator[Callable[[], None]]) -> None:
        for check in todo:
            check()

    share(iter(checks), work)
