"""Bundles that hold nothing but named bytes: write them, read them, look around."""

from kvc.schema.container import BundleFile, Content, StoredBlobs, save_bundle
from kvc.schema.dtypes import DType
from kvc.schema.model import DataFile, NamedData, Program
from kvc.schema.provenance import Provenance
from kvc.schema.types import TensorType

# Equal contents, an empty one, and one of each alignment that is quick to write.
SMALL = {
    "a": b"weights of a" * 20,
    "empty": b"",
    "tied": b"weights of a" * 20,
    "page": bytes(range(256)) * 17,
    "last": b"\1\2\3",
}


def data_program(contents):
    entries = [
        NamedData(name, i, TensorType(DType.UINT8, (len(raw),)), "plain", "test")
        for i, (name, raw) in enumerate(contents.items())
    ]
    return Program(
        provenance=Provenance("0", "0", "none", "", ""),
        symbols=(),
        files=(DataFile("", b""),),
        blobs=(),
        names=tuple(entries),
        states=(),
        cursors=(),
        methods=(),
        delegates=(),
        metadata={},
    )


def save_data(path, contents, **options):
    """Write a bundle of named bytes; the options of `save_bundle`."""
    raws = list(contents.values())

    def content(name):
        raw = memoryview(raws[name])
        chunks = [raw[i : i + 100_000] for i in range(0, len(raw), 100_000)]
        return Content(len(raw), lambda: iter(chunks), name)

    return save_bundle(path, data_program(contents), content, **options)


def names(folder):
    """Return the names in a folder, those of temporary files too."""
    return sorted(entry.name for entry in folder.iterdir())


def read_blobs(path, folders=()):
    with StoredBlobs.open(BundleFile(path), folders) as stored:
        return [
            b"".join(bytes(chunk) for chunk in stored.chunks(blob))
            for blob in range(len(stored.program.blobs))
        ]
