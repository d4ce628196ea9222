"""How much a session holds, chosen when it is opened, and the memory that it takes."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cached_models import (
    SLOTS,
    VOCAB,
    Append,
    FixedLength,
    IndexCopy,
    Linear,
    RowStore,
    append_methods,
    placed_methods,
    simple_methods,
)
from daily import every
from resident_memory import LINUX, resident_nbytes
from state_runs import opened

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.request.spec import StateSpec
from kvc.runtime import BadSetting, CacheOverflow, Program, UnknownName
from kvc.schema.errors import CapacityFixed, CompileError

TEXT = np.random.default_rng(6).integers(0, VOCAB, (1, SLOTS))
CAPACITY = Dim("capacity", 4, 32768)
SPECS = [StateSpec("[kv]", axis=2, capacity=CAPACITY)]


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("sized")
    with opened(Linear(), simple_methods(), folder, states=SPECS) as program:
        yield program


@pytest.fixture(scope="module")
def expected(backend: str) -> np.ndarray:
    with torch.no_grad():
        return Linear().reference(torch.from_numpy(TEXT)).numpy()


@pytest.mark.parametrize("capacity", [4, 7, 16, 48, 1000, 32768, None])
def test_every_capacity_gives_the_same_numbers(
    sized: Program, expected: np.ndarray, capacity: int | None
) -> None:
    with sized.session(capacity=capacity) as session:
        assert session.capacity == (capacity or 32768)
        assert session.state["k"].shape[2] == (capacity or 32768)
        end = min(capacity or SLOTS, SLOTS)
        found = [session.prefill(TEXT[:, :3])]
        found += [session.decode(TEXT[:, i : i + 1]) for i in range(3, end)]
        found = np.concatenate(found, 1)
        np.testing.assert_allclose(found, expected[:, :end], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("capacity", [4, 7, 16])
def test_more_tokens_than_the_capacity_overflow_before_any_write(
    sized: Program, capacity: int
) -> None:
    with sized.session(capacity=capacity) as session:
        with pytest.raises(CacheOverflow):
            session.prefill(TEXT[:, : capacity + 1])
        assert session.position.tolist() == [0]
        assert not session.state["k"].any()
        session.prefill(TEXT[:, :capacity])
        kept = session.state["k"].copy()
        for tokens in (TEXT[:, :1], TEXT[:, :3]):
            with pytest.raises(CacheOverflow) as caught:
                session.call("decode" if tokens.shape[1] == 1 else "prefill", tokens)
            assert (caught.value.start, caught.value.capacity) == (capacity, capacity)
            assert session.position.tolist() == [capacity]
            assert np.array_equal(session.state["k"], kept)


@pytest.mark.parametrize("capacity", [0, 3, -1, 32769, True, 4.0, "8"])
def test_a_capacity_out_of_its_bounds_is_refused(
    sized: Program, capacity: object
) -> None:
    with pytest.raises(BadSetting, match="capacity: expected"):
        sized.session(capacity=capacity)


@every(2, "bounds")
@pytest.mark.parametrize("bounds", [(1, 48), (2, 64), (1, 32768), (3, 60)])
def test_a_capacity_may_be_less_than_the_longest_prefill(
    tmp_path: Path, bounds: tuple[int, int]
) -> None:
    model = Linear()
    for name in ("k", "v"):
        setattr(model, name, torch.zeros(1, 1, 16, 4))
    specs = [StateSpec("[kv]", axis=2, capacity=Dim("capacity", *bounds))]
    with (
        opened(model, simple_methods()[:1], tmp_path, states=specs) as program,
        program.session(capacity=bounds[0]) as session,
    ):
        session.prefill(TEXT[:, : bounds[0]])
        with pytest.raises(CacheOverflow):
            session.prefill(TEXT[:, :2])


def test_sessions_of_several_capacities_live_together(
    sized: Program, expected: np.ndarray
) -> None:
    sessions = [sized.session(capacity=n) for n in (8, 16, 4, 100)]
    for i in range(4):
        for session in sessions:
            found = session.decode(TEXT[:, i : i + 1])
            np.testing.assert_allclose(
                found, expected[:, i : i + 1], rtol=1e-4, atol=1e-5
            )
    for session in sessions:
        session.close()


def test_code_that_reads_its_length_elsewhere_is_refused_with_its_line() -> None:
    with pytest.raises(CapacityFixed) as caught:
        compile_program(FixedLength(), simple_methods(), states=SPECS)
    source = Path(FixedLength.prefill.__code__.co_filename).read_text().splitlines()
    line = next(i for i, text in enumerate(source, 1) if "self.max_len, " in text)
    assert re.search(rf"cached_models:{line}\b", str(caught.value))
    assert (caught.value.buffer, caught.value.axis) == ("k", 2)


@pytest.mark.parametrize(
    "spec",
    [
        StateSpec("nothing.*", axis=2, capacity=CAPACITY),
        StateSpec("k", axis=4, capacity=CAPACITY),
        StateSpec("out.weight", axis=0, capacity=CAPACITY),
        StateSpec("k", axis=2, capacity=Dim("capacity", 4, 40)),
    ],
)
def test_a_spec_that_fits_no_buffer_is_refused(spec: StateSpec) -> None:
    with pytest.raises(CompileError, match="StateSpec"):
        compile_program(Linear(), simple_methods(), states=[spec])


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        (Linear(), simple_methods()),
        (IndexCopy(), placed_methods()),
        (Append(), append_methods()),
    ],
    ids=["linear", "index_copy", "append"],
)
def test_a_fixed_buffer_may_be_used_in_part(
    tmp_path: Path, model: torch.nn.Module, methods: list[Method]
) -> None:
    with opened(model, methods, tmp_path) as program:
        for bad in (0, SLOTS + 1):
            with pytest.raises(BadSetting, match=rf"capacity: expected 1..{SLOTS}"):
                program.session(capacity=bad)
        with program.session(capacity=5) as session:
            assert session.capacity == 5
            session.prefill(TEXT[:, :4])
            with pytest.raises(CacheOverflow):
                session.prefill(TEXT[:, :2])
            session.decode(TEXT[:, :1])
            with pytest.raises(CacheOverflow):
                session.decode(TEXT[:, :1])
            assert session.position.tolist() == [5]
            session.rewind(1)
            session.decode(TEXT[:, :1])
        with program.session() as session:
            session.prefill(TEXT)
            with pytest.raises(CacheOverflow):
                session.decode(TEXT[:, :1])


def test_a_program_that_counts_nothing_has_no_capacity(tmp_path: Path) -> None:
    method = Method("reference", args=(torch.from_numpy(TEXT),))
    with (
        opened(Linear(), [method], tmp_path) as program,
        pytest.raises(UnknownName, match="capacity"),
    ):
        program.session(capacity=4)


MB = 1 << 20
CHUNK = 8192  # rows of 512 bytes: 4 MB


def resident() -> float:
    """Return the private memory of this process in MB."""
    return resident_nbytes() / MB


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Iterator[Program]:
    rows = torch.zeros(1, 1, 8, 128)
    dynamic = {"rows": {2: Dim("seq", 1, CHUNK)}}
    specs = [StateSpec("k", axis=2, capacity=Dim("capacity", 8, 1 << 20))]
    methods = [Method("write", args=(rows,), dynamic=dynamic)]
    folder = tmp_path_factory.mktemp("store")
    with opened(RowStore(), methods, folder, states=specs) as program:
        yield program


@LINUX
def test_memory_appears_with_tokens_and_goes_when_they_do(store: Program) -> None:
    chunk = np.ones((1, 1, CHUNK, 128), np.float32)
    with store.session(capacity=16) as warm:
        warm.write(chunk[:, :, :8])
    with store.session(capacity=1 << 20) as session:  # 512 MB
        for _ in range(2):
            session.write(chunk)  # scratch memory for a whole chunk is there now
        session.reset()
        session.trim()
        start = resident()
        with store.session() as other:
            assert resident() - start < 1
            other.write(chunk[:, :, :8])
        grown = []
        for _ in range(4):
            session.write(chunk)
            session.trim()
            grown.append(resident() - start)
        assert grown == pytest.approx([4, 8, 12, 16], abs=1.5)
        session.rewind(2 * CHUNK)
        assert resident() - start == pytest.approx(8, abs=1.5)
        assert session.position.tolist() == [2 * CHUNK]
        assert session.state["k"][0, 0, 2 * CHUNK - 1, 0] == 1
        session.reset()
        assert resident() - start == pytest.approx(0, abs=1.5)
        session.write(chunk)
    assert resident() - start < 6
