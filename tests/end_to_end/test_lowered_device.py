"""A vendor of numpy, written by the page of the lowering alone, runs a model.

`tests/end_to_end/state` runs it as the way `lowered`.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from lowered_device import PRIMITIVES, RAN, Lowered, use_lowered_device
from tiny_runs import TOKENS, answers, compiled, contents, distance, near
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.compiler.backends import BACKENDS
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import Program, load
from kvc.schema.backends.lowered import LoweredList
from kvc.schema.backends.primitives import SHORTCUTS, Primitive
from kvc.schema.errors import (
    BadProgram,
    CacheOverflow,
    IndexOutOfRange,
    KernelFailed,
)

FAR = 1e-6  # of the largest number


def recipe(**buckets: tuple[int, ...]) -> Recipe:
    return replace(load_recipe("fp32"), name="mine", backend="lowered", buckets=buckets)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model for the device and by the recipe fp32."""
    folder = tmp_path_factory.mktemp("lowered")
    with pytest.MonkeyPatch.context() as patch:
        use_lowered_device(patch)
        mine = compiled(folder / "mine", recipe(seq=(1, 4, 16)))
    return mine, compiled(folder / "fp32", "fp32")


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    use_lowered_device(monkeypatch)


@pytest.fixture
def both(paths: tuple[Path, Path]) -> Iterator[tuple[Program, Program]]:
    with load(paths[0]) as mine, load(paths[1]) as plain:
        yield mine, plain


def test_whole_methods_are_taken(both: tuple[Program, Program]):
    for method in both[0]._engine.program.methods:
        ops = [step.op for step in method.graph.instructions]
        assert ops == ["kvc::delegate"], method.name


def test_it_says_what_the_reference_says(both: tuple[Program, Program]):
    mine, plain = both
    RAN.clear()
    with mine.session() as here, plain.session() as there:
        assert distance(answers(here), answers(there)) <= FAR
        assert here.position.tolist() == there.position.tolist() == [13]
        assert distance(contents(here), contents(there)) <= FAR
    assert RAN
    assert RAN.keys() <= PRIMITIVES
    # Attention has a softmax, layers have a SILU, norms have an RSQRT.
    assert not RAN.keys() & (SHORTCUTS.keys() - {Primitive.RECIPROCAL})


def test_a_fork_and_a_saved_session_go_on_alike(
    both: tuple[Program, Program], tmp_path: Path
):
    with both[0].session() as session:
        session.prefill(TOKENS[:, :8])
        session.save(tmp_path / "s.session")
        with session.fork() as other:
            wanted = session.decode(TOKENS[:, 8:9])
            assert np.array_equal(other.decode(TOKENS[:, 8:9]), wanted)
        with both[0].restore(tmp_path / "s.session") as again:
            assert np.array_equal(again.decode(TOKENS[:, 8:9]), wanted)


def test_a_full_cache_is_refused_and_nothing_has_changed(
    both: tuple[Program, Program],
):
    with both[0].session() as session:
        session.prefill(TOKENS[:, :16])
        session.prefill(TOKENS[:, 16:23])
        for attempt, tokens in ((session.prefill, 3), (session.decode, 1)):
            before = contents(session)
            with pytest.raises(CacheOverflow):
                attempt(TOKENS[:, :tokens])
            assert all(map(np.array_equal, contents(session), before))
            if tokens == 3:
                session.decode(TOKENS[:, 23:24])
        assert session.position.tolist() == [24]


class Looked(nn.Module):
    """A table that is looked into at places that the model computes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(5, 4))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        self.count.add_(1.0)
        return self.table[places + 1] * 2


class Waving(Looked):
    """The same, and a sine, which the device has not."""

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return torch.sin(super().forward(places)) + 1


PLACES = np.array([0, 2, 1])
METHOD = Method("forward", (torch.from_numpy(PLACES),))


def test_an_index_outside_is_refused_and_nothing_has_changed(tmp_path: Path):
    model = Looked().eval()
    wanted = (model.table[[1, 3, 2]] * 2).detach().numpy()
    compile_program(model, [METHOD], recipe()).save(tmp_path / "m")
    with load(tmp_path / "m") as program, program.session() as session:
        (method,) = program._engine.program.methods
        assert [step.op for step in method.graph.instructions] == ["kvc::delegate"]
        assert near(session.forward(PLACES), wanted, FAR)
        for wrong, index in ((4, 5), (-8, -7)):
            with pytest.raises(IndexOutOfRange, match=f"{index}"):
                session.forward(np.array([0, wrong, 1]))
        with pytest.raises(KernelFailed, match="of 32 bits, and this is 2147483648"):
            session.forward(np.array([0, 2**31, 1]))
        assert session.state["count"].tolist() == [1]
        assert near(session.forward(PLACES - 5), wanted, FAR)
        assert session.state["count"].tolist() == [2]


def test_what_the_device_lacks_is_left_to_others(tmp_path: Path):
    model = Waving().eval()
    wanted = (torch.sin(model.table[[1, 3, 2]] * 2) + 1).detach().numpy()
    compile_program(model, [METHOD], recipe()).save(tmp_path / "m")
    with load(tmp_path / "m") as program, program.session() as session:
        (method,) = program._engine.program.methods
        ops = [step.op for step in method.graph.instructions]
        assert ops.count("kvc::delegate") == 2
        assert "aten::sin" in ops
        assert near(session.forward(PLACES), wanted, FAR)


class Wide(Lowered):
    """The same device of a later year, which has all primitives."""

    name: ClassVar[str] = "lowered"
    supported = staticmethod(LoweredList(frozenset(Primitive)).why_not)


def test_a_bundle_with_an_operator_that_the_device_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setitem(BACKENDS, "lowered", Wide)
    compile_program(Waving().eval(), [METHOD], recipe()).save(tmp_path / "m")
    with load(tmp_path / "m") as program, program.session() as session:
        with pytest.raises(
            BadProgram, match="lowered does not take aten::sin: it does"
        ):
            session.forward(PLACES)
        assert session.state["count"].tolist() == [0]


class Shifted(nn.Module):
    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return places + 2**40


def test_a_number_of_more_than_32_bits_is_left_to_others(tmp_path: Path):
    compile_program(Shifted(), [METHOD], recipe()).save(tmp_path / "m")
    with load(tmp_path / "m") as program:
        assert not program._engine.program.delegates
        assert program.forward(PLACES).tolist() == (PLACES + 2**40).tolist()
