"""The ways to bring data into memory, by the names that `load` takes.

In: open files, a mode. Out: `HeldBlobs`, which brings blobs into memory. The modes:
- `map`: a private copy-on-write map of each file; only used pages are in memory, and
the system can reclaim them. A file must not change while it is open.
- `read`: a copy of each blob in private memory; the files may change afterwards.
- `huge`: as `read`, but large blobs lie in pages of 2 MiB; the gain in speed depends on
the operating system's kernel and on the shapes of the weights.
Programs of one process with the same mode hold equal blobs once (`shared.py`).
"""

from typing import Final, Literal, assert_never

from kvc.runtime.data.held import HeldBlobs
from kvc.runtime.data.locations import BlobMemory
from kvc.runtime.data.mapped import MappedBlobs
from kvc.runtime.data.own import OwnBlobs
from kvc.schema.container import StoredBlobs
from kvc.schema.errors import BadSetting

Mode = Literal["map", "read", "huge"]
MODES: Final[tuple[Mode, ...]] = ("map", "read", "huge")


def check_mode(mode: str) -> Mode:
    """Check the name of a mode, and return the mode.

    Raises:
        BadSetting: the name is unknown.
    """
    for known in MODES:
        if mode == known:
            return known
    raise BadSetting(name="mode", expected=" or ".join(MODES), found=repr(mode))


def hold_blobs(stored: StoredBlobs, mode: Mode) -> HeldBlobs:
    """Return a `HeldBlobs` of open files; closing it closes the files."""
    return HeldBlobs(stored, _memory(stored, mode))


def _memory(stored: StoredBlobs, mode: Mode) -> BlobMemory:
    match mode:
        case "map":
            return MappedBlobs(stored)
        case "read" | "huge":
            return OwnBlobs(stored, huge=mode == "huge")
        case _:
            assert_never(mode)
