"""Programs with mutated bytes and right digests: nothing but KvcError may escape."""

import contextlib
import random
import struct

import pytest
from block_programs import delegated_branches
from daily import RARELY, only
from growing_programs import growing_program, positioned_program
from sample_programs import sample_program, tiny_program

from kvc.schema.codec import decode, encode
from kvc.schema.errors import KvcError
from kvc.schema.verify import verify_program

EXTREMES = (
    0,
    1,
    2,
    3,
    7,
    255,
    2**15,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)


def mutate(raw, dice):
    """Change one to three places: a bit, a number, or a copy of another place."""
    changed = bytearray(raw)
    for _ in range(dice.randint(1, 3)):
        size = dice.choice((1, 2, 4, 8))
        position = dice.randrange(0, len(raw) - size, size)
        kind = dice.randrange(4)
        if kind == 0:
            changed[position] ^= 1 << dice.randrange(8)
        elif kind == 1:
            value = dice.choice(EXTREMES) & (256**size - 1)
            changed[position : position + size] = value.to_bytes(size, "little")
        elif kind == 2:
            other = dice.randrange(0, len(raw) - size, size)
            changed[position : position + size] = raw[other : other + size]
        else:
            small = (changed[position] + dice.choice((-1, 1, 2))) % 256
            changed[position] = small
    return bytes(changed)


@only(seed=range(2))
@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_program_raises_only_kvc_errors(seed):
    dice = random.Random(seed)
    made = (sample_program, tiny_program, growing_program, positioned_program)
    seeds = [encode(program()) for program in (*made, delegated_branches)]
    passed = 0
    for _ in range(800):
        try:
            program = decode(mutate(dice.choice(seeds), dice), "x")
            verify_program(program, "x", thorough=True)
        except KvcError:
            continue
        passed += 1
    assert passed < 400


PROGRAMS = pytest.mark.parametrize("program", [tiny_program(), positioned_program()])


def check(raw, position, extreme):
    """Verify a program with one word changed; nothing but KvcError may escape."""
    changed = bytearray(raw)
    struct.pack_into("<I" if extreme < 2**32 else "<Q", changed, position, extreme)
    with contextlib.suppress(KvcError):
        verify_program(decode(bytes(changed), "x"), "x", thorough=True)


@PROGRAMS
def test_each_word_of_a_program_at_some_extremes(program):
    """Each word at three of the twelve, of two neighbours not the same three."""
    raw = encode(program)
    for number, position in enumerate(range(0, len(raw) - 8, 4)):
        for extreme in EXTREMES[number % 4 :: 4]:
            check(raw, position, extreme)


@RARELY
@PROGRAMS
def test_each_word_of_a_program_at_each_extreme(program):
    raw = encode(program)
    for position in range(0, len(raw) - 8, 4):
        for extreme in EXTREMES:
            check(raw, position, extreme)
