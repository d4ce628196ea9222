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
from kvc.schema.container.header import BUNDLE, DATA
from kvc.schema.container.lookup import Folder
from kvc.schema.container.new_data_file import NewDataFile
from kvc.schema.container.reused import ReusedFile
from kvc.schema.errors import OutputProblem
from kvc.schema.model import DataFile, Program
from kvc.schema.verify import verify_program
from kvc.schema.verify.semantics import is_plain_name

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
    reuse: Sequence[Folder] = (),
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
        reused = _open_reused(stack, reuse, bundle.path)
        if not external:
            stream = BlobStream(bundle, reused)
            placed = _store(program, contents, stream, progress)
            return _save_alone(bundle, stream, _number_files(placed, [_SELF], reused))
        data = stack.enter_context(NewDataFile(bundle.path, bundle.folder))
        stream = BlobStream(data, reused)
        placed = _store(program, contents, stream, progress)
        return _save_pair(bundle, data, stream, placed, reused)


def _open_reused(
    stack: ExitStack, paths: Iterable[Folder], bundle: str
) -> list[ReusedFile]:
    """Open and lock data files, each once.

    Raises:
        OutputProblem: two of them have one name, so that a bundle cannot tell them.
        FileProblem, FormatError: one cannot be read.
    """
    reused: dict[bytes, ReusedFile] = {}
    names: set[str] = set()
    for path in dict.fromkeys(str(Path(path).resolve()) for path in paths):
        file = stack.enter_context(ReusedFile(path))
        if file.entry.digest in reused:
            continue
        name = file.entry.name
        if name in names or not is_plain_name(name):
            reason = f"a bundle cannot refer to {path}: its name is taken, or not plain"
            raise OutputProblem(path=bundle, reason=reason)
        names.add(name)
        reused[file.entry.digest] = file
    return list(reused.values())


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
    index = encode_index(own)
    digest = sha256(index).digest()
    name = data_file_name(bundle.target, digest)
    made = _number_files(placed, [_SELF, DataFile(name, digest)], reused)
    verify_program(made, bundle.path, thorough=True)
    data.make_durable(stream.write_tail(index, DATA))
    data.publish(name, digest)
    try:
        bundle.commit(tail.write_tail(encode(made), BUNDLE))
    finally:
        data.keep = bundle.committed
    path = str(data.folder / name)
    return SavedBundle(made, tail.end, path, stream.end, data.is_new)


def _save_alone(bundle: AtomicFile, stream: BlobStream, made: Program) -> SavedBundle:
    """Write program and header of a bundle without a new data file, and name it."""
    verify_program(made, bundle.path, thorough=True)
    bundle.commit(stream.write_tail(encode(made), BUNDLE))
    return SavedBundle(made, stream.end, None, 0, False)


def data_file_name(bundle: Path, digest: bytes) -> str:
    """Return the name of a new data file: plain, whatever the bundle's is."""
    stem = _STRANGE.sub("_", bundle.stem)[:_MOST_STEM].lstrip(".") or "data"
    return f"{stem}-{digest.hex()[:12]}{SUFFIX}"
