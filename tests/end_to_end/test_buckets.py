"""Sizes in buckets where a runtime chooses sizes: rows, rings, drafts, scores."""

from pathlib import Path

import numpy as np
import pytest
import torch
from drafting_models import CHUNK, decoder
from drafting_models import CONFIG as DRAFTED
from fixed_backend import recipe
from ragged_models import (
    MOST,
    VOCAB,
    Ragged,
    RaggedRings,
    ragged_methods,
    ragged_specs,
)
from scored_model import scored_model
from torch import Tensor, nn

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.compiler.models.demo import decoder_caches, decoder_methods
from kvc.runtime import generate, load
from kvc.runtime.scoring import score_tokens
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadSetting, UnusableLogits
from kvc.tools.reports.memory import describe_position

TEXT = np.random.default_rng(8).integers(0, VOCAB, (3, MOST))


def compiled(
    folder: Path,
    model: nn.Module,
    methods: list[Method],
    states: tuple[StateSpec, ...] = (),
    **buckets: tuple[int, ...],
) -> Path:
    """Write a bundle of a model for the backend cpu."""
    path = folder / f"{len(buckets)}.kvc"
    made = recipe(folder, "cpu", **buckets)
    compile_program(model, methods, made, states=states).save(path)
    return path


@pytest.mark.parametrize("row_lengths", [[7, 3, 6], [0, 7, 1]])
def test_rows_of_other_lengths_run_over_rings_in_pieces(
    tmp_path: Path, row_lengths: list[int]
) -> None:
    parts = RaggedRings().eval(), ragged_methods(), tuple(ragged_specs(rings=True))
    counts, found = np.array(row_lengths), []
    for buckets in ({"seq": (1, 4)}, {}):
        path = compiled(tmp_path, *parts, **buckets)
        with load(path) as program, program.session(batch=3) as session:
            found.append(session.prefill(TEXT[:, :7], counts))
            assert session.position.tolist() == row_lengths
    there = counts > 0
    np.testing.assert_allclose(found[0][there], found[1][there], rtol=2e-3, atol=2e-4)


def test_drafts_guess_as_many_tokens_as_a_bucket_checks(tmp_path: Path) -> None:
    methods, states = decoder_methods(DRAFTED, CHUNK, True), (decoder_caches(DRAFTED),)
    path = compiled(tmp_path, decoder(), methods, states, seq=(1, 7))
    with load(path) as program, program.session() as target, program.session() as draft:
        run = generate(target, [3, 1, 4], max_tokens=14, draft=draft)
        tokens = list(run)
        assert run.drafted >= 6
        with program.session() as alone:
            assert list(generate(alone, [3, 1, 4], max_tokens=14)) == tokens
        with (
            program.session() as fresh,
            pytest.raises(BadSetting, match="draft_tokens: expected from 6 to 6"),
        ):
            generate(fresh, [3, 1, 4], draft=draft, draft_tokens=4)


class Leaking(nn.Module):
    """Logits that the whole text decides, what follows a token too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(256, 256))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [1, seq, vocab]."""
        rows = nn.functional.embedding(tokens, self.table)
        return rows + rows.sum(dim=1, keepdim=True)


def test_a_method_that_sees_what_it_predicts_is_found_at_any_buckets(
    tmp_path: Path,
) -> None:
    tokens = torch.zeros(1, 5, dtype=torch.int64)
    whole = Method("forward", args=(tokens,), dynamic={"tokens": {1: Dim("n", 1, 16)}})
    for model, buckets in ((Leaking(), (1, 16)), (scored_model(), (1, 16))):
        path = compiled(tmp_path, model.eval(), [whole], n=buckets)
        with load(path) as program:
            if isinstance(model, Leaking):
                with pytest.raises(UnusableLogits, match="depend on later tokens"):
                    score_tokens(program, list(b"def f(x):"))
            else:
                assert score_tokens(program, list(b"def f(x):")).tokens == 8


def test_dump_says_the_greatest_position_that_a_bucket_allows(tmp_path: Path) -> None:
    methods, states = decoder_methods(DRAFTED, CHUNK), (decoder_caches(DRAFTED),)
    path = compiled(tmp_path, decoder(), methods, states, capacity=(16, 48))
    with BundleFile.open(path) as file:
        found = describe_position(file.program)
    assert found is not None
    assert (found.capacity, found.chosen) == (48, "capacity")
    with load(path) as program, program.session() as session:
        assert session.capacity == 48


def test_a_session_has_as_many_rows_as_it_was_asked_for(tmp_path: Path) -> None:
    parts = Ragged().eval(), ragged_methods(), tuple(ragged_specs())
    with load(compiled(tmp_path, *parts, seq=(1, 4), batch=(2, 4))) as program:
        for asked in (2, 4):
            with program.session(batch=asked) as session:
                assert len(session.position) == asked
        with program.session() as session:
            assert len(session.position) == 2
        with pytest.raises(BadSetting, match="batch: expected 2, 4, got 3"):
            program.session(batch=3)
