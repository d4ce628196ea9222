"""Blocks of queries and the keys they see, against asking about every pair."""

import itertools

import pytest
import torch

from kvc.schema.torch_ops.visibility import Block, RowVisibility

BOUNDS = (None, 0, 2, 5)
CPU = torch.device("cpu")


def sees(sight: RowVisibility, query: int, key: int) -> bool:
    p = sight.start + query
    in_window = sight.left is None or key >= p - sight.left
    return (
        key < sight.end
        and (key < sight.keep or (key >= sight.oldest and in_window))
        and (sight.ahead is None or key <= p + sight.ahead)
    )


def keys_of(block: Block) -> list[int]:
    return [key for run in block.runs for key in range(run.begin, run.end)]


SIGHTS = [
    RowVisibility(seq, total - seq, keep + oldest, end, left, ahead, keep)
    for seq, total in itertools.product((1, 4, 9), (0, 3, 12))
    for keep, oldest, end in itertools.product((0, 1, 3), (0, 2), (0, 3, 12))
    if end <= total
    for left, ahead in itertools.product(BOUNDS, BOUNDS)
]


@pytest.mark.parametrize("cells", [1, 12, 1000])
def test_blocks_hold_what_queries_see(cells):
    for sight in SIGHTS:
        pairs = set()
        for block in sight.blocks(cells):
            assert block.count == 1 or block.count * block.keys <= cells
            band, keys = block.band(CPU), keys_of(block)
            for i, j in itertools.product(range(block.count), range(block.keys)):
                if band is None or band[i, j]:
                    pairs.add((block.first + i, keys[j]))
        everything = itertools.product(range(sight.seq), range(sight.end))
        assert pairs == {pair for pair in everything if sees(sight, *pair)}


def test_a_block_reads_no_key_that_none_of_its_queries_sees():
    for sight in SIGHTS:
        for block in sight.blocks(20):
            queries = range(block.first, block.first + block.count)
            for key in keys_of(block):
                assert any(sees(sight, query, key) for query in queries)


def test_only_queries_that_see_are_in_blocks():
    for sight in SIGHTS:
        seeing = [
            query
            for query in range(sight.seq)
            if any(sees(sight, query, key) for key in range(sight.end))
        ]
        assert list(sight.seeing()) == seeing


def test_distances_are_positions_of_keys_less_those_of_queries():
    (block,) = RowVisibility(3, 7, 2, 10, 4, 0).blocks(1000)
    assert keys_of(block) == list(range(3, 10))
    assert block.distances(torch.float32, CPU)[:, 0].tolist() == [-4, -5, -6]


def test_windows_of_any_size_do_not_overflow():
    (block,) = RowVisibility(
        2, 2**62, 2**62 - 3, 2**62 + 2, 2**63 - 1, 2**63 - 1
    ).blocks(99)
    assert block.sees_all
    assert block.keys == 5


def test_a_window_bounds_the_pairs_of_a_long_row():
    blocks = list(RowVisibility(4096, 0, 0, 4096, 99, 0).blocks(2**22))
    assert sum(block.count * block.keys for block in blocks) < 4096 * 300
    assert {block.count for block in blocks} == {128}
