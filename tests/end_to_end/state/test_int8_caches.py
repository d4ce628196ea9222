"""int8 caches in sessions: against the quantized eager model, within 1e-5."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from cached_models import BATCH, SLOTS, VOCAB, Linear, row_methods, simple_methods
from daily import RARELY, only
from eager_parity import run_both
from int8_models import Exact, ExactRows, IndexCopied, KeptRing, OwnInt8, Ring, Swapped
from int8_ways import take_way
from state_runs import opened

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.recipes import load_recipe
from kvc.runtime import CacheOverflow, NotRewindable, Program, load
from kvc.schema.dtypes import DType
from kvc.schema.model import StateKind
from kvc.schema.torch_ops import int8_rows

INT8 = load_recipe("fp32", cache="int8")
TEXT = np.random.default_rng(8).integers(0, VOCAB, (1, SLOTS))
KINDS = {
    "linear": Exact,
    "slots before heads": Swapped,
    "index_copy": IndexCopied,
    "ring": Ring,
    "ring that keeps": KeptRing,
}
LONGEST = {
    "ring": 16,
    "ring that keeps": 16,
}  # tokens of a prefill: what its ring has room for
OPEN = ExitStack()


@pytest.fixture(scope="module", autouse=True)
def _closing(backend: str) -> Iterator[None]:
    yield
    OPEN.close()
    program_of.cache_clear()


def methods_of(kind: str) -> list[Method]:
    prefill, decode = simple_methods()
    seq = {"tokens": {1: Dim("seq", 1, LONGEST.get(kind, SLOTS))}}
    return [Method("prefill", args=prefill.args, dynamic=seq), decode]


@cache
def program_of(kind: str) -> Program:
    folder = Path(OPEN.enter_context(tempfile.TemporaryDirectory()))
    model, methods = KINDS[kind](), methods_of(kind)
    return OPEN.enter_context(opened(model, methods, folder, recipe=INT8))


@cache
def expected_of(kind: str) -> np.ndarray:
    with torch.no_grad():
        return KINDS[kind]().reference(torch.from_numpy(TEXT)).numpy()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def check(found: np.ndarray, kind: str, first: int) -> None:
    expected = expected_of(kind)[:, first : first + found.shape[1]]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def check_splits(kind: str, splits: Iterable[int]) -> None:
    """Assert that prefill of n tokens and decode of all others equal one forward."""
    with program_of(kind).session() as session:
        for n in splits:
            session.reset()
            if n:
                check(session.prefill(TEXT[:, :n]), kind, 0)
            for i in range(n, SLOTS):
                check(session.decode(TEXT[:, i : i + 1]), kind, i)


@only(kind=["linear", "slots before heads", "ring"])
def test_prefill_then_decode_equals_the_quantized_eager_model(kind: str) -> None:
    check_splits(kind, [0, 1, 16])


@RARELY
def test_prefill_then_decode_equals_it_at_every_split(kind: str) -> None:
    check_splits(kind, range(LONGEST.get(kind, SLOTS) + 1))


@pytest.mark.parametrize("digits", [True, False])
def test_both_ways_of_multiplying_do(digits: bool, monkeypatch) -> None:
    monkeypatch.setattr(int8_rows, "DIGITS_KEYS", 1)
    take_way(digits, monkeypatch)
    check_splits("linear", [20])


def test_the_plain_model_gives_other_numbers() -> None:
    with torch.no_grad():
        plain = Exact().plain_reference(torch.from_numpy(TEXT)).numpy()
    with program_of("linear").session() as session:
        assert np.abs(session.prefill(TEXT) - plain).max() > 1e-4


@pytest.mark.parametrize("ends", [(5, 6, 13, 29, 43, 48), (1, 2, 3, 16), (16, 32, 48)])
def test_prefill_in_pieces_equals_it(kind: str, ends: tuple[int, ...]) -> None:
    with program_of(kind).session() as session:
        for first, end in zip((0, *ends), ends, strict=False):
            check(session.prefill(TEXT[:, first:end]), kind, first)


def test_rows_and_their_scales_are_states_of_their_own(kind: str) -> None:
    states = program_of(kind).states
    made = StateKind.RING if kind in LONGEST else StateKind.LINEAR
    axis = 1 if kind == "slots before heads" else 2
    for name in ("k", "v"):
        rows, scale = states[name], states[f"{name}.scale"]
        assert (rows.type.dtype, scale.type.dtype) == (DType.INT8, DType.FLOAT32)
        assert scale.type.dims == rows.type.dims[:-1]
        for state in (rows, scale):
            assert (state.kind, state.axis, state.at_position) == (made, axis, True)


def test_nothing_is_copied_to_write_them(kind: str) -> None:
    for method in program_of(kind).methods.values():
        assert [update.reason for update in method.updates] == [""] * 5


@pytest.mark.parametrize("kind", ["linear", "slots before heads"])
def test_after_a_rewind_the_session_is_as_if_the_tokens_had_never_been(
    kind: str,
) -> None:
    with program_of(kind).session() as session, program_of(kind).session() as other:
        session.prefill(TEXT[:, :20])
        session.rewind(8)
        other.prefill(TEXT[:, :12])
        for name, found in session.state.items():
            assert np.array_equal(found, other.state[name]), name
        check(session.decode(TEXT[:, 12:13]), kind, 12)


def test_a_ring_goes_back_as_far_as_it_remembers() -> None:
    with program_of("ring").session() as session:
        for first in (0, 16):
            session.prefill(TEXT[:, first : first + 16])
        session.rewind(5)
        left = int(session.rewindable.item())
        assert left == LONGEST["ring"] - 5
        with pytest.raises(NotRewindable):
            session.rewind(left + 1)
        check(session.decode(TEXT[:, 27:28]), "ring", 27)


@pytest.mark.parametrize("transactional", [True, False])
def test_a_call_that_does_not_fit_writes_neither_rows_nor_scales(
    transactional: bool,
) -> None:
    with program_of("linear").session(transactional=transactional) as session:
        session.prefill(TEXT[:, :40])
        before = {name: np.array(found) for name, found in session.state.items()}
        with pytest.raises(CacheOverflow):
            session.prefill(TEXT[:, :9])
        for name, found in session.state.items():
            assert np.array_equal(found, before[name]), name
        check(session.decode(TEXT[:, 40:41]), "linear", 40)


def test_a_saved_session_goes_on(kind: str, tmp_path: Path) -> None:
    program = program_of(kind)
    with program.session() as session:
        session.prefill(TEXT[:, :14])
        session.save(tmp_path / "chat.kvs")
    with program.restore(tmp_path / "chat.kvs") as session:
        check(session.decode(TEXT[:, 14:15]), kind, 14)


def test_a_reset_session_begins_anew(kind: str) -> None:
    with program_of(kind).session() as session:
        session.prefill(TEXT[:, 4:16])
        session.reset()
        assert not any(found.any() for found in session.state.values())
        check(session.prefill(TEXT[:, :7]), kind, 0)


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Iterator[Program]:
    capacity = Dim("capacity", 4, 32768)
    specs = [StateSpec("[kv]", axis=2, capacity=capacity)]
    folder = tmp_path_factory.mktemp("sized")
    methods = simple_methods()
    with opened(Exact(), methods, folder, states=specs, recipe=INT8) as program:
        yield program


@pytest.mark.parametrize("capacity", [7, 48, None])
def test_scales_have_the_capacity_of_their_rows(
    sized: Program, capacity: int | None
) -> None:
    with sized.session(capacity=capacity) as session:
        slots = {session.state[name].shape[2] for name in ("k", "k.scale", "v.scale")}
        assert slots == {capacity or 32768}
        end = min(capacity or SLOTS, SLOTS)
        check(session.prefill(TEXT[:, :3]), "linear", 0)
        for i in range(3, end):
            check(session.decode(TEXT[:, i : i + 1]), "linear", i)


def test_each_row_of_a_batch_is_as_if_alone(tmp_path: Path) -> None:
    specs = [
        StateSpec("[kv]", axis=2, capacity=Dim("capacity", 4, 64), batch=BATCH),
        StateSpec("position", batch=BATCH),
    ]
    model, methods, text = ExactRows(), row_methods(), TEXT[0]
    rows = [text[:20], text[20:40], text[:20]]
    starts = [9, 5, 1]
    with (
        opened(model, methods, tmp_path, states=specs, recipe=INT8) as program,
        program.session(batch=3) as session,
    ):
        check_rows(session.prefill(np.stack([row[:9] for row in rows])), rows, [0] * 3)
        session.rewind(np.array([0, 4, 8]))
        for step in range(6):
            places = [start + step for start in starts]
            tokens = [row[[at]] for row, at in zip(rows, places, strict=True)]
            check_rows(session.decode(np.stack(tokens)), rows, places)


def check_rows(found: np.ndarray, rows: list[np.ndarray], firsts: list[int]) -> None:
    """Assert that each row has the logits of its tokens alone, from `firsts` on."""
    for one, tokens, first in zip(found, rows, firsts, strict=True):
        with torch.no_grad():
            alone = Exact().reference(torch.from_numpy(tokens.copy())[None]).numpy()
        expected = alone[0, first : first + len(one)]
        np.testing.assert_allclose(one, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("slots", [40, 4200])
def test_a_bundle_gives_the_bits_of_eager(tmp_path: Path, slots: int) -> None:
    torch.manual_seed(9)

    def arguments(seq: int, start: int) -> tuple[torch.Tensor, ...]:
        q, k, v = torch.randn(1, 6, seq, 8), *torch.randn(2, 1, 2, seq, 8)
        return q, k, v, torch.tensor([start])

    seq = {2: Dim("seq", 1, 32)}
    method = Method(
        "forward", args=arguments(3, 0), dynamic={"q": seq, "k": seq, "v": seq}
    )
    calls = [(6, 0), (30, slots - 34), (1, slots - 4), (2, slots - 3), (1, slots - 1)]
    run_both(
        OwnInt8(slots),
        [method],
        [("forward", arguments(*call)) for call in calls],
        tmp_path,
    )


def test_int8_weights_and_int8_caches_go_together(tmp_path: Path) -> None:
    results = []
    for dtype in ("float32", "int8"):
        recipe = load_recipe("xnnpack_q8", cache=dtype)
        path = tmp_path / f"{dtype}.kvc"
        compile_program(Linear().eval(), simple_methods(), recipe).save(path)
        with load(path, reference=True) as program, program.session() as session:
            assert session.state["k"].dtype == dtype
            outputs = [session.prefill(TEXT[:, :30])]
            outputs += [session.decode(TEXT[:, i : i + 1]) for i in range(30, 40)]
            results.append(np.concatenate(outputs, 1))
    # Rows are off by half a step of 127 at most, logits are of the size of 1.
    np.testing.assert_allclose(*results, rtol=0, atol=0.05)
    assert not np.array_equal(*results)
