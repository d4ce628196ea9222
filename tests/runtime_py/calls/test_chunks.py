"""How prompts are cut into calls."""

from hand_built import I64
from hypothesis import given
from hypothesis import strategies as st
from stateful_programs import Builder

from kvc.runtime.calls.chunks import ChunkSizes, chunk_sizes, plan_chunks
from kvc.schema.types import Symbol, TensorType, affine

DECODE = ChunkSizes("decode", 1, 1)
SYMBOLS = {"rows": Symbol("rows", 1, 3), "seq": Symbol("seq", 1, 5)}


def of_tokens(count):
    """Return a method that takes so many tokens."""
    b = Builder(SYMBOLS)
    return b.method("run", {"x": b.scratch(TensorType(I64, (1, count)))}, [])


def plan(count, *prefills):
    chunks = plan_chunks(count, prefills, DECODE)
    return [(chunk.method, chunk.count) for chunk in chunks]


def test_sizes_of_a_product_go_by_its_factor():
    method = of_tokens(affine(0, {}, {("rows", "seq"): 6}))
    assert chunk_sizes(method, SYMBOLS) == ChunkSizes("run", 6, 6 * 3 * 5, 6)


def test_chunks_are_as_few_and_as_even_as_can_be():
    prefill = ChunkSizes("prefill", 1, 512)
    assert plan(512, prefill) == [("prefill", 512)]
    assert plan(1000, prefill) == [("prefill", 500)] * 2
    assert plan(1025, prefill) == [("prefill", 342)] * 2 + [("prefill", 341)]


def test_the_rest_that_a_fixed_size_leaves_goes_token_by_token():
    prefill = ChunkSizes("prefill", 4, 4)
    assert plan(6, prefill) == [("prefill", 4), ("decode", 1), ("decode", 1)]
    assert plan(3, prefill) == [("decode", 1)] * 3


def test_a_least_size_is_kept():
    prefill = ChunkSizes("prefill", 5, 8)
    assert plan(9, prefill) == [("prefill", 8), ("decode", 1)]
    assert plan(11, prefill) == [("prefill", 6), ("prefill", 5)]


def test_several_fixed_sizes_make_the_fewest_calls():
    long, short = ChunkSizes("long", 128, 128), ChunkSizes("short", 32, 32)
    assert plan(200, short, long) == [
        ("long", 128),
        *[("short", 32)] * 2,
        *[("decode", 1)] * 8,
    ]
    assert plan(8, ChunkSizes("five", 5, 5), ChunkSizes("four", 4, 4)) == [
        ("four", 4),
        ("four", 4),
    ]


def test_a_size_made_for_the_prompt_goes_before_a_range():
    fixed, ranging = ChunkSizes("fixed", 128, 128), ChunkSizes("ranging", 1, 512)
    assert plan(128, ranging, fixed) == [("fixed", 128)]
    assert plan(100, ranging, fixed) == [("ranging", 100)]
    assert plan(256, ranging, fixed) == [("ranging", 256)]


def test_sizes_that_are_multiples_stay_so():
    prefill = ChunkSizes("prefill", 8, 64, step=8)
    assert plan(80, prefill) == [("prefill", 40)] * 2
    assert plan(83, prefill) == [("prefill", 64), ("prefill", 16), *[("decode", 1)] * 3]


@st.composite
def sizes(draw):
    step = draw(st.integers(1, 4))
    least = draw(st.integers(1, 12))
    return least, least + step * draw(st.integers(0, 8)), step


@given(count=st.integers(1, 200), drawn=st.lists(sizes(), max_size=4))
def test_every_plan_covers_the_prompt_with_sizes_that_fit(count, drawn):
    prefills = [ChunkSizes(f"p{i}", *size) for i, size in enumerate(drawn)]
    known = {sizes.method: sizes for sizes in (*prefills, DECODE)}
    chunks = plan_chunks(count, prefills, DECODE)
    assert sum(chunk.count for chunk in chunks) == count
    for chunk in chunks:
        taken = known[chunk.method]
        assert taken.least <= chunk.count <= taken.most
        assert (chunk.count - taken.least) % taken.step == 0
    if any(least == 1 and step == 1 for least, _, step in drawn):
        most = max(most for least, most, step in drawn if least == step == 1)
        assert len(chunks) <= -(-count // most)


def test_buckets_are_the_only_sizes():
    sizes = ChunkSizes("prefill", 1, 64, among=(1, 16, 64))
    assert [count for _, count in plan(37, sizes)] == [16, 16, 1, 1, 1, 1, 1]
    assert plan(64, sizes) == [("prefill", 64)]
    assert [sizes.greatest(n) for n in (1, 15, 16, 63, 99)] == [1, 1, 16, 16, 64]
    assert [sizes.smallest(n) for n in (1, 2, 16, 17, 64)] == [1, 16, 16, 64, 64]


def test_what_fits_no_bucket_is_decoded():
    sizes = ChunkSizes("prefill", 16, 64, among=(16, 64))
    assert plan(18, sizes) == [("prefill", 16), *[("decode", 1)] * 2]


def test_sizes_of_a_method_are_its_buckets_up_to_the_longest_call():
    method = of_tokens(affine(0, {"seq": 2}))
    symbols = {**SYMBOLS, "seq": Symbol("seq", 1, 8, (1, 4, 8))}
    assert chunk_sizes(method, symbols) == ChunkSizes("run", 2, 16, among=(2, 8, 16))
    assert chunk_sizes(method, symbols, 9) == ChunkSizes("run", 2, 8, among=(2, 8))
    nothing = chunk_sizes(method, symbols, 1)
    assert nothing.least > nothing.most
