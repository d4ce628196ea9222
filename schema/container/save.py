"""`save_bundle`: the one way in which a bundle is written, to compile, split and join.

In: a program, and where the bytes of its names come from. Out: one file, or a bundle
and a data file, whole or not at all: the data file gets its name first, and until the
bundle has its own the old pair is what a reader finds.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from kvc.schema.codec import encode, encode_index
from kvc.schema.container.atomic import AtomicFile
from kvc.schema.container.blob_stream import BlobStream, Content
from kvc.schema.container.header import BUNDLE, DATA, Kind
from kvc.schema.container.new_data_file import NewDataFile
from kvc.schema.container.paths import Folder
from kvc.schema.container.reused import ReusedFile, open_reused
from kvc.schema.errors import OutputProblem, OutputUnsynced, reason_of
from kvc.schema.model import DataFile, Program
from kvc.schema.verify import verify_program

Contents = Callable[[int], Content]  # of a name, by its id
Progress = Callable[[str, int, int], None]  # stage, done, total

_SELF: Final = DataFile("", b"")
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_STEM: Final = 96
SUFFIX: Final = ".kvd"


@dataclass(frozen=True, slots=True)
class SavedBundle:
    """What was written.

    Attributes:
        program: as the bundle has it.
        nbytes: size of the bundle.
        data_path: the data file with the blobs that no reused file had; None where
            there is none.
        data_nbytes: its size, 0 where there is none.
        data_is_new: whether it was not there before.
    """

    program: Program
    nbytes: int
    data_path: str | None
    data_nbytes: int
    data_is_new: bool


def save_bundle(
    path: Folder,
    program: Program,
    contents: Contents,
    *,
    external: bool = False,
    reuse: Folder | Iterable[Folder] = (),
    progress: Progress | None = None,
) -> SavedBundle:
    """Write a bundle, whole or not at all; one that exists is replaced at the very end.

    Args:
        path: the bundle.
        program: its `files` and `blobs`, and the blobs of its names, are made anew.
        contents: where the bytes of each name come from; asked in the order of names.
        external: whether blobs go to a data file beside the bundle.
        reuse: data files whose blobs are referred to rather than written again.
        progress: called with (stage, done, total) as names are written.

    Raises:
        OutputProblem: the system refuses; what was there is untouched.
        OutputUnsynced: the bundle is in place, but may not outlive a crash.
        FileProblem: a file in `reuse` cannot be read.
        FormatError: a file in `reuse` is damaged, or the program is wrong.
    """
    with ExitStack() as stack:
        bundle = stack.enter_context(AtomicFile(path))
        reused = open_reused(stack, reuse, bundle.path)
        if not external:
            stream = BlobStream(bundle, reused)
            placed = _store(program, contents, stream, progress)
            return _save_alone(bundle, stream, _number_files(placed, [_SELF], reused))
        data = stack.enter_context(NewDataFile(bundle.path, bundle.folder))
        stream = BlobStream(data, reused)
        placed = _store(program, contents, stream, progress)
        return _save_pair(bundle, data, stream, placed, reused)


def _store(
    program: Program, contents: Contents, stream: BlobStream, progress: Progress | None
) -> Program:
    """Write all blobs; in the result file 0 is the one that was written to."""
    names = []
    for done, named in enumerate(program.names):
        if progress:
            progress("write weights", done, len(program.names))
        names.append(replace(named, blob=stream.add(contents(done))))
    return replace(program, names=tuple(names), blobs=tuple(stream.blobs))


def _number_files(
    placed: Program, own: Sequence[DataFile], reused: Sequence[ReusedFile]
) -> Program:
    """Return the program with its files: `own`, then those reused files that it uses.

    The last of `own` is the one that was written to, number 0 in `placed`.
    """
    files, numbers = list(own), {0: len(own) - 1}
    used = {blob.file for blob in placed.blobs}
    for number, file in enumerate(reused, 1):
        if number in used:
            numbers[number] = len(files)
            files.append(file.entry)
    blobs = tuple(replace(blob, file=numbers[blob.file]) for blob in placed.blobs)
    return replace(placed, files=tuple(files), blobs=blobs)


def _save_pair(
    bundle: AtomicFile,
    data: NewDataFile,
    stream: BlobStream,
    placed: Program,
    reused: Sequence[ReusedFile],
) -> SavedBundle:
    """Name the data file, then the bundle; remove the first if the second fails."""
    tail = BlobStream(bundle, ())
    own = [blob for blob in placed.blobs if blob.file == 0]
    if not own:
        return _save_alone(bundle, tail, _number_files(placed, [_SELF], reused))
    index = _check_size(encode_index(own), DATA, bundle)
    digest = sha256(index).digest()
    name = _free_name(bundle, digest)
    made = _number_files(placed, [_SELF, DataFile(name, digest)], reused)
    raw = _encode(made, bundle)
    data.make_durable(stream.write_tail(index, DATA))
    data.publish(name, digest)
    try:
        bundle.commit(tail.write_tail(raw, BUNDLE))
    finally:
        data.keep = bundle.committed
    if data.sync_error is not None:
        reason = f"its data file: {reason_of(data.sync_error)}"
        raise OutputUnsynced(path=bundle.path, reason=reason)
    path = str(data.folder / name)
    return SavedBundle(made, tail.end, path, stream.end, data.is_new)


def _save_alone(bundle: AtomicFile, stream: BlobStream, made: Program) -> SavedBundle:
    """Write program and header of a bundle without a new data file, and name it."""
    bundle.commit(stream.write_tail(_encode(made, bundle), BUNDLE))
    return SavedBundle(made, stream.end, None, 0, False)


def _encode(program: Program, bundle: AtomicFile) -> bytes:
    """Return the bytes of a program that a reader will accept.

    Raises:
        FormatError: it is wrong.
        OutputProblem: it is too large.
    """
    verify_program(program, bundle.path, thorough=True)
    return _check_size(encode(program), BUNDLE, bundle)


def _check_size(raw: bytes, kind: Kind, bundle: AtomicFile) -> bytes:
    if len(raw) > kind.max_nbytes:
        reason = f"its {kind.tail} takes {len(raw)} bytes, {kind.max_nbytes} at most"
        raise OutputProblem(path=bundle.path, reason=reason)
    return raw


def _free_name(bundle: AtomicFile, digest: bytes) -> str:
    """Return the name of the new data file, which must not be the bundle's own."""
    name = data_file_name(bundle.target, digest)
    if name == bundle.target.name:
        reason = "its data file would have this very name; give another one"
        raise OutputProblem(path=bundle.path, reason=reason)
    return name


def data_file_name(bundle: Path, digest: bytes) -> str:
    """Return the name of a new data file: plain, whatever the bundle's is."""
    stem = _STRANGE.sub("_", bundle.stem)[:_MOST_STEM].lstrip(".") or "data"
    return f"{stem}-{digest.hex()[:12]}{SUFFIX}"
