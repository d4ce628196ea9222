"""`save_bundle`: the only code that writes bundles, for compile, split and join.

In: a program, and a function that returns the content of each named data. Out: one
file, or a bundle and data files. Either all files are written, or nothing changes: data
files get their names first, and a reader finds the old files until the bundle gets its
name.
"""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Final, Protocol

from kvc.schema.codec import encode, encode_index
from kvc.schema.container.header import (
    BUNDLE,
    DATA,
    HEADER_NBYTES,
    TAIL_ALIGN,
    FileKind,
    align_up,
    default_align,
)
from kvc.schema.container.new_data_file import NewDataFile
from kvc.schema.container.open_file import Folder
from kvc.schema.container.reused import ReusedFile, open_reused
from kvc.schema.container.store_once import BlobStream, Content
from kvc.schema.container.temporary import AtomicFile, TemporaryFile
from kvc.schema.errors import CannotWrite, NoSpace, Unsynced, reason_of
from kvc.schema.frozen import frozen
from kvc.schema.identity import with_identity
from kvc.schema.model import Blob, DataFile, NamedData, Program
from kvc.schema.uses import count_unpacked
from kvc.schema.verify import verify_program

# Check for disk space before the work.


def check_space(
    path: str, folder: Path, contents: Iterable[Content], elsewhere: Collection[int]
) -> None:
    """Check that a folder's file system has space for the contents of all named data.

    Args:
        path: path of the output, for the message.
        folder: the folder of the new files. The old output is not counted as free
            space, since it stays until the new output is complete.
        contents: the contents of all named data, in any order.
        elsewhere: sizes of blobs in reused files. A content of such a size may already
            be stored in a reused file, and is not counted.

    Raises:
        NoSpace: the file system has too little space.
        Exception: any exception raised by a content when it is read.
    """
    free = free_nbytes(folder)
    if free is None:
        return
    by_key = {content.key: content for content in contents}
    counted = [each for each in by_key.values() if each.nbytes not in elsewhere]
    if sum(each.nbytes for each in counted) <= free:
        return
    # A lower bound: equal starts count once.
    found: dict[Hashable, int] = {}
    for content in counted:
        first = next(iter(content.chunks()), memoryview(b""))
        digest = hashlib.sha256(first).digest()
        found[content.nbytes, len(first), digest] = content.nbytes
    needed = sum(found.values())
    if needed > free:
        raise NoSpace(path=path, folder=str(folder), needed=needed, free=free)


def free_nbytes(folder: Path) -> int | None:
    """Return how many bytes this process may write in a folder; None if unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    if found.f_blocks <= 0 or not 0 <= found.f_bavail <= found.f_blocks:
        return None
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return blocks * found.f_frsize


# `save_bundle` and its parts.


Contents = Callable[[int], Content]  # maps a name's id to its content


class Progress(Protocol):
    """A callback to which kvc reports the progress of a stage of its work."""

    def __call__(self, stage: str, done: int, total: int, item: str = "") -> None:
        """Report that `done` of `total` units of a stage are done.

        The units are steps, or bytes of weights.

        Args:
            stage: name of the stage.
            done: the number of units done.
            total: the number of units of the whole stage; 0 means unknown.
            item: the current item, such as the name of a weight.
        """
        ...


_SELF: Final = DataFile("", b"")
_PACKED: Final = -1  # a number that no reused file and no other target has
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_STEM: Final = 96
SUFFIX: Final = ".kvd"


@frozen
class SavedBundle:
    """Result of `save_bundle`.

    Attributes:
        program: the program as written.
        nbytes: size of the bundle, in bytes.
        data_path: path of the new bundle's data file, with the blobs that no reused
            file has; None if there is none.
        data_nbytes: size of that data file, in bytes; 0 if there is none.
        data_is_new: whether that data file did not exist before.
        packed_path: path of the data file with packed data; None if there is none.
        packed_nbytes: size of the data file with packed data; 0 if there is none.
    """

    program: Program
    nbytes: int
    data_path: str | None
    data_nbytes: int
    data_is_new: bool
    packed_path: str | None
    packed_nbytes: int


Accept = Callable[[SavedBundle], None]


@frozen
class _Target:
    """A file that blobs are written to.

    Its blobs have `number` as their `file` until the files of the program are numbered.
    """

    file: TemporaryFile
    stream: BlobStream
    number: int


def save_bundle(
    path: Folder,
    program: Program,
    contents: Contents,
    *,
    external: bool = False,
    packed_apart: bool = False,
    reuse: Folder | Iterable[Folder] = (),
    progress: Progress | None = None,
    accept: Accept | None = None,
) -> SavedBundle:
    """Write a bundle completely, or change nothing; then replace any old bundle.

    Args:
        path: path of the bundle.
        program: the program. Its `files`, its `blobs` and the blob ids of its names are
            made anew.
        contents: returns the content of each named data; called in the order of names.
        external: whether blobs go to a data file beside the bundle.
        packed_apart: whether packed data goes to a data file of its own.
        reuse: data files whose blobs are referred to rather than written again.
        progress: called for each named data before its bytes are written.
        accept: called for the new bundle before it gets its name. If `accept` raises,
            the old files stay and the new files are removed.

    Raises:
        CannotWrite: the system refuses; the old files are untouched.
        NoSpace: the disk has too little space; checked before anything is written.
        Unsynced: the bundle is in place, but may not survive a crash.
        FileProblem: a file in `reuse` cannot be read.
        FormatError: a file in `reuse` is damaged, or the program is wrong.
    """
    count = count_unpacked(program) if packed_apart else len(program.names)
    with ExitStack() as stack:
        bundle = stack.enter_context(AtomicFile(path))
        reused = open_reused(stack, reuse, bundle.path)

        def target(file: TemporaryFile, number: int) -> _Target:
            return _Target(file, BlobStream(file, reused), number)

        def new_file() -> NewDataFile:
            return stack.enter_context(NewDataFile(bundle.path, bundle.folder))

        targets = [target(new_file() if external else bundle, 0)]
        if count < len(program.names):
            targets.append(target(new_file(), _PACKED))
        names = range(len(program.names))
        sizes = {nbytes for file in reused for nbytes in file.sizes}
        check_space(bundle.path, bundle.folder, map(contents, names), sizes)
        placed = _store(program, contents, targets, count, progress)
        return _finish(bundle, targets, placed, reused, accept)


def foretold_nbytes(program: Program, contents: Contents) -> int:
    """Predict the size in bytes of a bundle that contains all its blobs.

    The bundle is smaller if contents of different keys turn out to have the same bytes.

    Args:
        program: the argument `program` of `save_bundle`.
        contents: returns the content of each named data; only the size and the key of a
            content are read.
    """
    end, ids, blobs = HEADER_NBYTES, dict[Hashable, int](), list[Blob]()
    names: list[NamedData] = []
    for number, named in enumerate(program.names):
        content = contents(number)
        if content.key not in ids:
            ids[content.key] = len(blobs)
            align = default_align(content.nbytes)
            start = align_up(end, align)
            end = start + content.nbytes
            blobs.append(Blob(bytes(32), content.nbytes, 0, start, align))
        names.append(replace(named, blob=ids[content.key]))
    whole = replace(program, names=tuple(names), blobs=tuple(blobs), files=(_SELF,))
    return align_up(end, TAIL_ALIGN) + len(encode(whole))


def _store(
    program: Program,
    contents: Contents,
    targets: Sequence[_Target],
    count: int,
    progress: Progress | None,
) -> Program:
    """Write the blobs of all named data to targets; return the program with them.

    The first `count` named data go to the first target, all others to the last. In the
    result, the `file` of a blob is the number of a target or of a reused file.
    """
    names: list[NamedData] = []
    ids: dict[tuple[bytes, int], int] = {}  # by content
    blobs: list[Blob] = []
    ends = (0, *accumulate([named.type.nbytes({}) for named in program.names]))
    for number, named in enumerate(program.names):
        if progress:
            progress("write weights", ends[number], ends[-1], named.name)
        target = targets[0 if number < count else -1]
        blob = target.stream.blobs[target.stream.add(contents(number))]
        key = blob.digest, blob.nbytes
        if key not in ids:
            ids[key] = len(blobs)
            blobs.append(replace(blob, file=blob.file or target.number))
        names.append(replace(named, blob=ids[key]))
    return replace(program, names=tuple(names), blobs=tuple(blobs))


def _finish(
    bundle: AtomicFile,
    targets: Sequence[_Target],
    placed: Program,
    reused: Sequence[ReusedFile],
    accept: Accept | None,
) -> SavedBundle:
    """Give the data files, then the bundle, their names.

    If the bundle fails, the new data files are removed.
    """
    used = {blob.file for blob in placed.blobs}
    written = [one for one in targets if one.file is not bundle and one.number in used]
    indices = [_index(one, bundle) for one in written]
    entries = [
        DataFile(_free_name(bundle, digest), digest)
        for digest in (sha256(index).digest() for index in indices)
    ]
    inside = targets[0].file is bundle
    numbers = {0: 0} if inside else {}
    numbers |= {one.number: i for i, one in enumerate(written, 1)}
    made = with_identity(_number_files(placed, [_SELF, *entries], numbers, reused))
    stream = targets[0].stream if inside else BlobStream(bundle, ())
    raw = _encode(made, bundle)
    published = []
    for one, index, entry in zip(written, indices, entries, strict=True):
        assert isinstance(one.file, NewDataFile), "no other file but the bundle"
        one.file.make_durable(one.stream.write_tail(index, DATA))
        one.file.publish(entry.name, entry.digest)
        published.append(one.file)
    try:
        header = stream.write_tail(raw, BUNDLE)
        saved = SavedBundle(made, stream.end, None, 0, False, None, 0)
        for one, file, entry in zip(written, published, entries, strict=True):
            where, nbytes = str(file.folder / entry.name), one.stream.end
            if one.number == _PACKED:
                saved = replace(saved, packed_path=where, packed_nbytes=nbytes)
            else:
                saved = replace(
                    saved, data_path=where, data_nbytes=nbytes, data_is_new=file.is_new
                )
        if accept is not None:
            accept(saved)
        bundle.commit(header)
    finally:
        for file in published:
            file.keep = bundle.committed
    for file in published:
        if file.sync_error is not None:
            reason = f"its data file: {reason_of(file.sync_error)}"
            raise Unsynced(path=bundle.path, reason=reason)
    return saved


def _index(target: _Target, bundle: AtomicFile) -> bytes:
    """Return the encoded index of a new data file: the blobs written to it."""
    own = [blob for blob in target.stream.blobs if blob.file == 0]
    return _check_size(encode_index(own), DATA, bundle)


def _number_files(
    placed: Program,
    own: Sequence[DataFile],
    numbers: Mapping[int, int],
    reused: Sequence[ReusedFile],
) -> Program:
    """Return a program with its `files`: `own`, then the reused files that it needs.

    Args:
        placed: the program; the `file` of a blob is the number of a target or reused
            file.
        own: the bundle itself and its new data files.
        numbers: the index in `own` of each target, by the target's number.
        reused: all reused files.
    """
    files, known = list(own), dict(numbers)
    used = {blob.file for blob in placed.blobs}
    for number, file in enumerate(reused, 1):
        if number in used:
            known[number] = len(files)
            files.append(file.entry)
    blobs = tuple(replace(blob, file=known[blob.file]) for blob in placed.blobs)
    return replace(placed, files=tuple(files), blobs=blobs)


def _encode(program: Program, bundle: AtomicFile) -> bytes:
    """Return the bytes of a program, after the checks that a reader would make.

    Raises:
        FormatError: the program is wrong.
        CannotWrite: the program is too large.
    """
    verify_program(program, bundle.path, thorough=True)
    return _check_size(encode(program), BUNDLE, bundle)


def _check_size(raw: bytes, kind: FileKind, bundle: AtomicFile) -> bytes:
    if len(raw) > kind.max_nbytes:
        reason = f"its {kind.tail} takes {len(raw)} bytes, {kind.max_nbytes} at most"
        raise CannotWrite(path=bundle.path, reason=reason)
    return raw


def _free_name(bundle: AtomicFile, digest: bytes) -> str:
    """Return a name for a bundle's new data file that is not the bundle's own name."""
    name = data_file_name(bundle.target, digest)
    if name == bundle.target.name:
        reason = "its data file would have this very name; give another one"
        raise CannotWrite(path=bundle.path, reason=reason)
    return name


def data_file_name(bundle: Path, digest: bytes) -> str:
    """Return a name for a bundle's data file, from the bundle's name and a digest."""
    stem = _STRANGE.sub("_", bundle.stem)[:_MOST_STEM].lstrip(".") or "data"
    return f"{stem}-{digest.hex()[:12]}{SUFFIX}"
