"""`StoredBlobs`: read the blobs of a program from the bundle and its data files.

In: an open bundle, and folders to search for its data files. Out: the bytes of blobs,
read and checked by two threads, and the open files for mapping. A data file's index
must agree with the program's entries. A data file that holds only packed data may be
missing; then its blobs cannot be read.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Self

from kvc.schema.closing import Closing
from kvc.schema.container.bundle_file import BundleFile, DataFileReader, SealedFile
from kvc.schema.container.lookup import (
    AbsentFile,
    find_data_file,
    is_spare,
    search_path,
)
from kvc.schema.container.open_file import Folder
from kvc.schema.digests import LEAF_NBYTES, BlobHasher, filled_digest
from kvc.schema.errors import BadProgram, DataFileMissing
from kvc.schema.model import Blob

_CHUNK_NBYTES: Final = 4 * LEAF_NBYTES
_MOST_NAMES: Final = 3  # of a blob, in a message


class StoredBlobs(Closing):
    """The open files of a program; a blob's id is its index in `program.blobs`.

    Attributes:
        program: the program of the bundle.
        files: the files by `DataFile` id; 0 is the bundle.
        data_files: all data files that are present.
    """

    def __init__(
        self, bundle: BundleFile, data_files: Iterable[DataFileReader | AbsentFile]
    ) -> None:
        """Take ownership of open files.

        Raises:
            BadProgram: the program contradicts the index of a data file.
        """
        self._bundle, self.program = bundle, bundle.program
        self.files: tuple[SealedFile, ...] = (bundle, *data_files)
        self.data_files = tuple(f for f in self.files if isinstance(f, DataFileReader))
        self._names: list[list[str]] = [[] for _ in self.program.blobs]
        for named in self.program.names:
            self._names[named.blob].append(named.name)
        self._padding = dict(bundle.layout.padding)
        for number, other in enumerate(self.files):
            if isinstance(other, DataFileReader):
                self._padding |= match_index(bundle, number, other)

    @classmethod
    def open(
        cls,
        bundle: BundleFile,
        folders: Folder | Iterable[Folder] = (),
        whole: bool = False,
    ) -> Self:
        """Find and open the data files of a bundle; on an error, close the bundle.

        Args:
            bundle: the open bundle; the returned object closes it.
            folders: folders to search for data files that are not beside the bundle.
            whole: whether files that hold only packed data must be present, too.

        Raises:
            DataFileMissing, DataFileMismatch: a data file is not found.
            FileProblem: a data file cannot be read.
            FormatError: a data file is damaged.
        """
        opened: list[DataFileReader | AbsentFile] = []
        try:
            places = search_path(bundle.path, folders)
            for number, file in enumerate(bundle.program.files[1:], 1):
                try:
                    opened.append(find_data_file(file, bundle.path, places))
                except DataFileMissing as error:
                    if whole or not is_spare(bundle.program, number):
                        raise
                    opened.append(AbsentFile(error))
            return cls(bundle, opened)
        except BaseException:
            for one in (bundle, *opened):
                one.close()
            raise

    @property
    def identity(self) -> str:
        """Return the identity of the bundle's program."""
        return self._bundle.identity

    def check(self, blob: int) -> None:
        """Check a blob and the padding before it; the blob is read in small pieces.

        Raises:
            DigestMismatch: the blob is damaged.
            BadStructure: the padding is not zero.
            FileProblem, Truncated: the blob cannot be read.
            DataFileMissing: the blob is packed data, and its file is missing.
        """
        entry, file = self._place(blob)
        file.check_blob(entry, self._padding.get(blob, 0), self.describe(blob))

    def read_into(self, blob: int, target: memoryview) -> None:
        """Read a blob into memory, and check the digest of the bytes in that memory.

        Args:
            blob: id of the blob.
            target: memory of exactly the blob's size.

        Raises:
            The errors of `check`; `target` then holds undefined bytes.
        """
        entry, file = self._place(blob)
        assert target.nbytes == entry.nbytes, "the target has another size"
        self._check_digest(blob, filled_digest(target.cast("B"), file.filler(entry)))

    def chunks(self, blob: int) -> Iterator[memoryview]:
        """Yield a blob in chunks; a chunk is valid until the next chunk.

        The digest is checked after the last chunk.

        Raises:
            The errors of `check`.
        """
        entry, file = self._place(blob)
        hasher, rest = BlobHasher(), entry.nbytes
        buffer = memoryview(bytearray(min(_CHUNK_NBYTES, rest)))
        while rest:
            part = buffer[:rest]
            file.pread_into(entry.offset + entry.nbytes - rest, part)
            hasher.update(part)
            yield part
            rest -= part.nbytes
        self._check_digest(blob, hasher.digest())

    def check_unchanged(self) -> None:
        """Check that no open file has changed since it was opened.

        Raises:
            FileChanged: a file was replaced or changed.
        """
        for file in self.files:
            file.check_unchanged()

    def describe(self, blob: int) -> str:
        """Return a description of a blob for messages: its names, at most three."""
        names = self._names[blob]
        if not names:
            return f"blob {blob}"
        more = len(names) - _MOST_NAMES
        told = " = ".join(names[:_MOST_NAMES])
        return f"{told} and {more} more" if more > 0 else told

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        for file in self.files:
            with suppress(OSError):
                file.close()

    def _place(self, blob: int) -> tuple[Blob, SealedFile]:
        entry = self.program.blobs[blob]
        return entry, self.files[entry.file]

    def _check_digest(self, blob: int, digest: bytes) -> None:
        entry, file = self._place(blob)
        padding = self._padding.get(blob, 0)
        file.check_digest(entry, padding, self.describe(blob), digest)


def match_index(
    bundle: BundleFile, number: int, file: DataFileReader
) -> dict[int, int]:
    """Check that a program's entries for a data file agree with the file's index.

    Returns:
        For each blob id of the program in this file, the offset at which the padding
        before the blob begins.

    Raises:
        BadProgram: the data file's index does not agree with the program.
    """
    index = {(entry.digest, entry.nbytes): i for i, entry in enumerate(file.blobs)}
    padding = {}
    for blob, entry in enumerate(bundle.program.blobs):
        if entry.file != number:
            continue
        i = index.get((entry.digest, entry.nbytes))
        if i is None or _place_of(file.blobs[i]) != _place_of(entry):
            what = f"{file.path} has it not, or not at this place"
            raise BadProgram(path=bundle.path, where=f"blob {blob}", what=what)
        padding[blob] = file.layout.padding[i]
    return padding


def _place_of(blob: Blob) -> tuple[int, int]:
    return blob.offset, blob.align
