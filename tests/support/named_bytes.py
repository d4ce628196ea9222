"""Write and read bundles that hold only named bytes, and look at their folders."""

import numpy as np
from hand_built import program

from kvc.schema.container import BundleFile, Content, StoredBlobs, save_bundle

# Equal contents, an empty one, and one of each alignment that is quick to write.
SMALL = {
    "a": b"weights of a" * 20,
    "empty": b"",
    "tied": b"weights of a" * 20,
    "page": bytes(range(256)) * 17,
    "last": b"\1\2\3",
}


def data_program(contents):
    arrays = {name: np.frombuffer(raw, np.uint8) for name, raw in contents.items()}
    return program([], arrays)[0]


def save_data(path, contents, **options):
    """Write a bundle of named bytes; `options` are those of `save_bundle`."""
    raws = list(contents.values())

    def content(name):
        raw = memoryview(raws[name])
        chunks = [raw[i : i + 100_000] for i in range(0, len(raw), 100_000)]
        return Content(len(raw), lambda: iter(chunks), name)

    return save_bundle(path, data_program(contents), content, **options)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def read_blobs(path, folders=()):
    with StoredBlobs.open(BundleFile(path), folders) as stored:
        return [
            b"".join(bytes(chunk) for chunk in stored.chunks(blob))
            for blob in range(len(stored.program.blobs))
        ]
