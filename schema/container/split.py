"""Move the blobs of a bundle to a data file, or back into the bundle.

In: a bundle. Out: another bundle, which `save_bundle` writes. Packed data in a data
file of its own stays separate; if that file is missing, packed data is left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kvc.schema.container.bundle_file import BundleFile
from kvc.schema.container.lookup import AbsentFile
from kvc.schema.container.open_file import Folder, resolved
from kvc.schema.container.save import Contents, Progress, SavedBundle, save_bundle
from kvc.schema.container.store_once import Content
from kvc.schema.container.stored_blobs import StoredBlobs
from kvc.schema.errors import CannotWrite
from kvc.schema.model import Delegate, Program
from kvc.schema.uses import count_unpacked


def split_bundle(
    path: Folder,
    output: Folder | None = None,
    folders: Folder | Iterable[Folder] = (),
    progress: Progress | None = None,
) -> SavedBundle:
    """Write a bundle as header and program, with its blobs in a data file beside it.

    Blobs that are already in data files of the output's folder stay there. Packed data
    gets a data file of its own unless it already lies in a separate data file.

    Args:
        path: path of the bundle.
        output: path of the bundle without blobs; None to replace the file at `path`.
        folders: folders to search for data files of the bundle.
        progress: the argument `progress` of `save_bundle`.

    Raises:
        The errors of `save_bundle` and `StoredBlobs.open`.
        DigestMismatch: a blob is damaged.
    """
    target = path if output is None else output
    with StoredBlobs.open(BundleFile(path), folders) as stored:
        home = resolved(target, CannotWrite).parent
        files = [resolved(file.path) for file in stored.data_files]
        return save_bundle(
            target,
            present_program(stored),
            stored_contents(stored),
            external=True,
            packed_apart=True,
            reuse=[file for file in files if file.parent == home],
            progress=progress,
        )


def join_bundle(
    path: Folder,
    output: Folder,
    folders: Folder | Iterable[Folder] = (),
    progress: Progress | None = None,
) -> SavedBundle:
    """Write a bundle and the blobs in its data files as one file.

    Raises:
        The errors of `split_bundle`.
    """
    with StoredBlobs.open(BundleFile(path), folders) as stored:
        contents = stored_contents(stored)
        return save_bundle(output, present_program(stored), contents, progress=progress)


def present_program(stored: StoredBlobs) -> Program:
    """Return the program of open files, without packed data if any of it is missing."""
    if not any(isinstance(file, AbsentFile) for file in stored.files):
        return stored.program
    program, count = stored.program, count_unpacked(stored.program)
    variants = tuple(
        replace(one, delegates=_without_packed(one.delegates, count))
        for one in program.variants
    )
    return replace(
        program,
        names=program.names[:count],
        delegates=_without_packed(program.delegates, count),
        variants=variants,
    )


def _without_packed(delegates: Iterable[Delegate], count: int) -> tuple[Delegate, ...]:
    """Return delegates without packed data; only names below `count` are not packed."""
    return tuple(
        replace(one, names=tuple(name for name in one.names if name < count))
        for one in delegates
    )


def stored_contents(stored: StoredBlobs) -> Contents:
    """Return a function that returns the content of a named data of open files."""

    def content(name: int) -> Content:
        blob = stored.program.names[name].blob

        def chunks() -> Iterator[memoryview]:
            return stored.chunks(blob)

        return Content(stored.program.blobs[blob].nbytes, chunks, blob)

    return content
