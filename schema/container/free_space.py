"""Whether a disk has room for what is to be written, found out before the work.

In: where the bytes of a bundle's names will come from, and a folder. Out: nothing, or
`NoSpace`. Blobs of equal bytes are stored once, and which are equal is known only when
they have been hashed, so that it is the least that is compared: of what begins alike,
one. Most file systems say truly what is free. Those that say nothing, as some networks'
do, are not asked again, and compression is not counted on.
"""

import hashlib
import os
from collections.abc import Collection, Hashable, Iterable
from pathlib import Path

from kvc.schema.container.blob_stream import Content
from kvc.schema.errors import NoSpace


def check_space(
    path: str, folder: Path, contents: Iterable[Content], elsewhere: Collection[int]
) -> None:
    """Check that the file system of a folder has room for contents.

    Args:
        path: of the output, for the message.
        folder: where files are made; an old output stays until the new one is whole.
        contents: of all names, in any order.
        elsewhere: sizes of blobs that reused files have; contents of these sizes may
            be there, and are not counted.

    Raises:
        NoSpace: it has not.
        Exception: whatever a content raises when it is read.
    """
    free = free_nbytes(folder)
    if free is None:
        return
    by_key = {content.key: content for content in contents}
    counted = [each for each in by_key.values() if each.nbytes not in elsewhere]
    if sum(each.nbytes for each in counted) <= free:
        return
    needed = _least(counted)
    if needed > free:
        raise NoSpace(path=path, folder=str(folder), needed=needed, free=free)


def free_nbytes(folder: Path) -> int | None:
    """Return how many bytes this process may write there; None if nobody knows."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    if found.f_blocks <= 0 or not 0 <= found.f_bavail <= found.f_blocks:
        return None
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return blocks * found.f_frsize


def _least(contents: Iterable[Content]) -> int:
    """Return how many bytes contents have at the least, those that begin alike once."""
    found: dict[Hashable, int] = {}
    for content in contents:
        first = next(iter(content.chunks()), memoryview(b""))
        digest = hashlib.sha256(first).digest()
        found[content.nbytes, len(first), digest] = content.nbytes
    return sum(found.values())
