"""Open and run mutated bundles by libkvc; the whole process fails if one harms it.

Run as a program: `libkvc_mutations.py BUNDLE SEED COUNT FOLDER [PART]`. Prints how many
bundles were refused and how many ran. PART `lists` changes bound lists alone.
"""

import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from libkvc import CBundle, Refused
from program_mutations import mutate_bytes
from sealing import parts, seal

from kvc.schema.bounds import LIST_COLUMNS, TABLE_COLUMNS
from kvc.schema.codec.records import TableReader

_ALLOWED = """
BAD_ARGUMENT CACHE_OVERFLOW CALL_TOO_LONG DAMAGED DATA_FILE_MISSING INDEX_OUT_OF_RANGE
INPUT_MISMATCH KERNEL_FAILED NOT_BOUND NOT_ENCODED NOT_REWINDABLE NO_POSITION
OTHER_KERNELS OUT_OF_MEMORY POISONED STATE_MISMATCH UNKNOWN_NAME
"""
ALLOWED = set(_ALLOWED.split())
NUMBERS = (0, 1, 2, 3, 7, 255, 4096, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, -1)


def mutate_lists(program: bytes, dice: random.Random) -> bytes:
    """Change one to three numbers of the tables of bound lists."""
    made = bytearray(program)
    bounds = TableReader.root(program, "Program").child("bounds")
    tables = [(bounds, TABLE_COLUMNS)]
    tables += [(one, LIST_COLUMNS) for one in bounds.children("lists")]
    for _ in range(dice.randint(1, 3)):
        table, names = dice.choice(tables)
        name = dice.choice(names)
        column = table.vector(name)
        if not column.size:
            continue
        size = column.dtype.itemsize
        at = table.place(name)
        start = at + int.from_bytes(program[at : at + 4], "little") + 4
        place = start + size * dice.randrange(column.size)
        old = int.from_bytes(made[place : place + size], "little")
        near = dice.random() < 0.6
        new = old + dice.choice((-2, -1, 1, 2, 64)) if near else dice.choice(NUMBERS)
        made[place : place + size] = (new % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(made)


def play(path: Path) -> str:
    """Open a bundle and run it; return the code that it is refused with, or OK."""
    try:
        with CBundle(path) as bundle, bundle.session() as session:
            for count in (3, 1, 2, 1):
                session.step([*range(1, count + 1)])
            session.fork().close()
            session.rewind(2)
            session.step([1])
    except Refused as error:
        if error.code in ALLOWED:
            return error.code
        raise
    return "OK"


def main(path: str, seed: str, count: str, folder: str, part: str = "all") -> None:
    dice, found = random.Random(int(seed)), Counter[str]()
    blobs, program = parts(Path(path))
    mutate = mutate_lists if part == "lists" else mutate_bytes
    with np.errstate(all="ignore"):
        for _ in range(int(count)):
            changed = Path(folder) / "changed.kvc"
            changed.write_bytes(seal(blobs, mutate(program, dice)))
            found[play(changed)] += 1
    print(dict(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
