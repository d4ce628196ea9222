"""Whether the bytes of a bundle are those that were written, by their digests."""

from collections.abc import Iterator, Sequence

from kvc.schema.container import BundleFile, DataFileReader, StoredBlobs
from kvc.schema.two_threads import share


def check_stored(path: str, folders: Sequence[str]) -> None:
    """Check all weights of a bundle, those that no sample call reads too.

    Packed weights whose file is not beside the bundle are left out, as in loading.

    Args:
        path: of the bundle.
        folders: where to look for data files, too.

    Raises:
        FormatError: something is damaged; `DigestMismatch` names the weight.
        LoadError: a file is not there, or cannot be read.
    """
    with StoredBlobs.open(BundleFile.open(path), folders) as stored:
        numbered = enumerate(stored.files)
        there = {i for i, file in numbered if isinstance(file, DataFileReader)} | {0}
        blobs = enumerate(stored.program.blobs)

        def check(todo: Iterator[int]) -> None:
            for blob in todo:
                stored.check(blob)

        share(iter([i for i, blob in blobs if blob.file in there]), check)
