"""`StoredBlobs`: read the blobs of a program, in the bundle and in data files.

In: an open bundle, and folders in which to look for its data files. Out: the bytes of
blobs, read and checked by two threads, and the open files for mapping. A data file's
index must agree with what the program says of each blob. A file with nothing but packed
data may be missing; then all its blobs are.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Self

from kvc.schema.closing import Closing
from kvc.schema.container.lookup import (
    AbsentFile,
    find_data_file,
    is_spare,
    search_path,
)
from kvc.schema.container.opened import Folder
from kvc.schema.container.sealed import BundleFile, DataFileReader, SealedFile
from kvc.schema.digests import LEAF_NBYTES, BlobHasher, filled_digest
from kvc.schema.errors import BadProgram, DataFileMissing
from kvc.schema.model import Blob

_CHUNK_NBYTES: Final = 4 * LEAF_NBYTES
_MOST_NAMES: Final = 3  # of a blob, in a message


class StoredBlobs(Closing):
    """Open files; a blob's id is its position in `program.blobs`.

    Attributes:
        program: of the bundle.
        files: by `DataFile` id; 0 is the bundle.
        data_files: all that are there, but the bundle.
    """

    def __init__(
        self, bundle: BundleFile, data_files: Iterable[DataFileReader | AbsentFile]
    ) -> None:
        """Put open files together, which then belong to this object.

        Raises:
            BadProgram: the program says other than the index of a data file.
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
        """Find and open the data files of a bundle; on errors the bundle is closed too.

        Args:
            bundle: belongs to the result: `close` closes it.
            folders: where to look for data files that are not beside the bundle.
            whole: whether those must be there, too, that hold packed data alone.

        Raises:
            DataFileMissing, DataFileMismatch: a data file is not there.
            FileProblem: a data file cannot be read.
            FormatError: one is damaged.
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
        """Check a blob and the padding before it, in little memory.

        Raises:
            DigestMismatch: its bytes are damaged.
            BadStructure: the padding is not zero.
            FileProblem, Truncated: they cannot be read.
            DataFileMissing: it is packed data, and its file is not there.
        """
        entry, file = self._place(blob)
        file.check_blob(entry, self._padding.get(blob, 0), self.describe(blob))

    def read_into(self, blob: int, target: memoryview) -> None:
        """Read a blob into memory, and check what is there then.

        Args:
            blob: its id.
            target: exactly as long as the blob.

        Raises:
            as `check`; then the content of `target` is worth nothing.
        """
        entry, file = self._place(blob)
        assert target.nbytes == entry.nbytes, "the target has another size"
        digest = filled_digest(target.cast("B"), file.filler(entry))
        self._check_digest(blob, digest)

    def chunks(self, blob: int) -> Iterator[memoryview]:
        """Yield a blob in pieces, each good until the next; raises as `check`.

        Only after the last one is it known that they were right.
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
        """Check that all files are still those that were opened.

        Raises:
            FileChanged: one is not.
        """
        for file in self.files:
            file.check_unchanged()

    def describe(self, blob: int) -> str:
        """Return what a program calls a blob, for messages; of many names the first."""
        names = self._names[blob]
        if not names:
            return f"blob {blob}"
        more = len(names) - _MOST_NAMES
        told = " = ".join(names[:_MOST_NAMES])
        return f"{told} and {more} more" if more > 0 else told

    def close(self) -> None:
        """Close all files; closing twice is fine."""
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
    """Return, for each blob of a program in a data file, where its padding begins.

    Raises:
        BadProgram: the data file's index does not have it like this.
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
