"""Narrow caches that branches and loops write: in place, as the model that rounds."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cached_models import SLOTS, VOCAB
from daily import every
from int8_branching import (
    Branching,
    Looped,
    MergedFixed,
    Scanned,
    SwappedInBranch,
    Written,
    branching_method,
    update,
)
from int8_models import as_float16
from state_runs import opened
from torch import Tensor

from kvc.compiler import compile_program
from kvc.recipes import load_recipe
from kvc.runtime import CacheOverflow
from kvc.schema.dtypes import DType
from kvc.schema.errors import CacheDtypeRefused
from kvc.schema.model import StateKind
from kvc.tools.reports.memory import describe_copies

INT8 = load_recipe("fp32", cache="int8")
# How rows are rounded, and what is exact before: see `int8_models.py`.
ROUNDED: dict[str, dict[str, object]] = {
    "int8": {},
    "float16": {"rounded": staticmethod(as_float16), "parts": 256},
}
TEXT = np.random.default_rng(8).integers(0, VOCAB, (1, SLOTS))
KINDS = {
    "written": Written, "merged": MergedFixed, "swapped": SwappedInBranch,
    "scanned": Scanned, "looped": Looped,
}  # fmt: skip
YES, NO = np.array(True), np.array(False)


@every(2, "kind", "dtype")
@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("kind", KINDS)
def test_branches_write_them_in_place_as_the_model_that_rounds(
    kind: str, dtype: str, tmp_path: Path
) -> None:
    """Prefill of 5, then one by one; then back, and once more from there."""
    model = type("Rounded", (KINDS[kind],), ROUNDED[dtype])()
    recipe = load_recipe("fp32", cache=dtype)
    with torch.no_grad():
        expected = model.reference(torch.from_numpy(TEXT)).numpy()
        plain = model.plain_reference(torch.from_numpy(TEXT)).numpy()
    assert np.abs(plain - expected).max() > 4e-5, "rounding shows"
    with (
        opened(model, [branching_method()], tmp_path, recipe=recipe) as program,
        program.session() as session,
    ):
        assert program.states["k"].type.dtype is DType[dtype.upper()]
        cached = [n for n in program.states if n != "position"]
        assert {program.states[n].kind for n in cached} == {StateKind.LINEAR}
        reports = describe_copies(program._engine.program)
        assert {(r.verdict, r.bytes_per_call) for r in reports} == {("SAFE", 0)}

        def check(begin: int, end: int) -> None:
            begun = NO if kind == "merged" and not begin else YES
            found = session.step(TEXT[:, begin:end], begun)
            np.testing.assert_allclose(found, expected[:, begin:end], rtol=0, atol=1e-5)

        check(0, 5)
        for i in range(5, 12):
            check(i, i + 1)
        if kind != "scanned":  # whose turns say for themselves where they write
            session.rewind(4)
            check(8, 11)
            session.reset()
            check(0, SLOTS)
            with pytest.raises(CacheOverflow):
                session.step(TEXT[:, :1], YES)


def test_the_branch_that_writes_nothing_leaves_rows_and_scales(tmp_path: Path) -> None:
    with (
        opened(Written(), [branching_method()], tmp_path, recipe=INT8) as program,
        program.session() as session,
    ):
        session.step(TEXT[:, :4], YES)
        before = {name: np.array(kept) for name, kept in session.state.items()}
        assert before["k"].any()
        assert before["k.scale"].any()
        session.step(TEXT[:, 4:7], NO)
        for name in set(before) - {"position"}:
            np.testing.assert_array_equal(session.state[name], before[name])


Run = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def refused(yes: Callable[..., Tensor], no: Callable[..., Tensor]) -> CacheDtypeRefused:
    """Return why a model whose keys two branches make cannot have int8 caches."""

    class Refused(Branching):
        def run(
            self, p: Tensor, start: Tensor, q: Tensor, k: Tensor, v: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            new_k = torch.cond(
                p, lambda c, k: yes(c, k, start), lambda c, k: no(c, k, start),
                (self.k, k),
            )  # fmt: skip
            new_v = update(self.v, v, start)
            y = torch.ops.kvc.attention(q, new_k, new_v, start + q.shape[2])
            return y, new_k, new_v

    with pytest.raises(CacheDtypeRefused) as caught:
        compile_program(Refused().eval(), [branching_method()], recipe=INT8)
    return caught.value


def written(cache: Tensor, k: Tensor, start: Tensor) -> Tensor:
    return update(cache, k, start)


def test_a_branch_that_gives_another_value_is_refused_with_its_line():
    error = refused(written, lambda cache, k, start: torch.zeros_like(cache))
    assert error.facts["state"] == "k"
    assert "test_int8_caches:" in error.reason
    assert "method step: kvc::cond at" in error.reason


def test_a_branch_that_reads_a_cache_otherwise_is_refused_with_its_line():
    def reads(cache: Tensor, k: Tensor, start: Tensor) -> Tensor:
        return update(cache, k + cache.sum(), start)

    error = refused(reads, lambda cache, k, start: cache.clone())
    assert "method step: aten::sum" in error.reason
    assert "test_int8_caches:" in error.reason
