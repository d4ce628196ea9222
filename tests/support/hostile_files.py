"""All families of hostile files, by name.

In: names of families, a folder. Out: an object for each name that makes the variants
and tries them. The bundles that they need are compiled into the folder, unless they are
there already.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hostile_beside import DataFiles, Sessions
from hostile_cases import Seed, Verdict
from hostile_texts import TEXT_FILES


class Variants(Protocol):
    """Hostile variants of one valid file."""

    name: str

    def content(self, number: int) -> bytes | None:
        """Return the bytes of a case's file; None if it cannot be encoded."""
        ...

    def try_case(self, number: int, folder: Path) -> Verdict: ...


# The names of `hostile_seeds.SEEDS`, which takes seconds to import.
BUNDLES = (
    *("cpu_q8", "two recipes", "buckets", "loops", "xnnpack_q8", "int8 cache"),
    *("rings", "int8 rings", "ragged", "ragged branches", "ragged rings"),
    *("convolutions", "growing", "branches on cpu", "loops on cpu"),
    *("xnnpack int8 cache", "torch", "vulkan", "vulkan rings"),
)
_BESIDE = {"session of ": Sessions, "data of ": DataFiles}
NAMES = (
    *BUNDLES,
    *TEXT_FILES,
    *(f"session of {x}" for x in ("growing", "int8 rings", "ragged rings", "cpu_q8")),
    *(f"data of {one}" for one in ("growing", "xnnpack_q8", "two recipes")),
)


def open_variants(names: Sequence[str], folder: Path) -> list[Variants]:
    return [_opened(name, folder) for name in names]


def _opened(name: str, folder: Path) -> Variants:
    if name in TEXT_FILES:
        return TEXT_FILES[name]()
    for start, kind in _BESIDE.items():
        if name.startswith(start):
            return kind(_bundle(name.removeprefix(start), folder))
    return Seed(_bundle(name, folder))


def _bundle(name: str, folder: Path) -> Path:
    path = folder / "seeds" / f"{name}.kvc"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        from hostile_seeds import write_seed  # with torch and the compiler

        print(f"compiling {name}", file=sys.stderr)
        write_seed(name, path)
    return path
