"""Rows of a model with an encoder: each with an input and a length of its own."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import RARELY
from seq2seq_models import (
    CAPACITY,
    NOTICED,
    SEQ2SEQ,
    TOLERANCE,
    build,
    compare_at_end,
    compare_rows,
    encode_rows,
    rows_of,
    text,
)
from transformers import PreTrainedModel

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Program, Session, generate, load
from kvc.schema.errors import BadSetting, InputMismatch, NotEncoded
from kvc.schema.graph import AccessMode

ROWS = 3
HEARD = 20
CACHE = CacheConfig(CAPACITY, batch=ROWS, encoder_length=HEARD)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return build("t5", num_layers=1)


@pytest.fixture(scope="module")
def program(model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    path: Path = tmp_path_factory.mktemp("t5") / "model.kvc"
    export_hf(model, recipe="cpu_fp32", cache=CACHE, prefill_chunk=12).save(path)
    with load(path) as opened:
        yield opened


@pytest.fixture
def session(program: Program) -> Iterator[Session]:
    with program.session(batch=ROWS) as opened:
        yield opened


def test_each_row_has_the_logits_that_it_has_alone(model, session):
    far, other = compare_rows(model, session, rows_of(model))
    assert far < TOLERANCE
    assert other > 100 * far


def test_cross_caches_are_written_in_place_and_hold_no_padding(program, session):
    for method in program.methods.values():
        written = [access for update in method.updates for access in update.accesses]
        assert sum(one.mode is AccessMode.SLOTS for one in written) == 2
        assert not any(update.copies for update in method.updates)
    encode_rows(session, [text(7), text(1), text(17)])
    assert session.positions["kvc_heard"].tolist() == [7, 1, 17]
    keys = np.array(session.state["kvc_cross.0.keys"])
    held = keys.any(axis=(1, 3)).sum(axis=1)
    assert held.tolist() == [7, 1, 17]


def test_texts_of_rows_are_what_transformers_generates_of_each(model, session):
    rows = [text(length, length) for length in (16, 1, 5)]
    settings = {"repetition_penalty": 1.7, "do_sample": False}
    wanted = [
        model.generate(torch.from_numpy(row), max_new_tokens=20, **settings)[0]
        for row in rows
    ]
    run = generate(
        session, [row[0] for row in rows], max_tokens=20, repetition_penalty=1.7
    )
    steps = len(list(run))
    assert steps == 20
    for one, made in zip(wanted, run.tokens, strict=True):
        assert made == [token for token in one.tolist()[1:] if token != 1]


@pytest.mark.parametrize("eos", [1, 5], ids=["end", "liked"])
def test_beams_are_those_of_transformers(model, session, eos):
    wanted = model.generate(
        torch.from_numpy(text(16)),
        num_beams=ROWS,
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=eos,
        repetition_penalty=1.7,
    )[0].tolist()[1:]
    said = {"num_beams": ROWS, "stop_tokens": eos, "repetition_penalty": 1.7}
    for _ in range(2):  # the encoder resets the session
        run = generate(session, text(16)[0], max_tokens=12, **said)
        made = list(run)
        assert made == [token for token in wanted if token not in (0, eos)]
        assert session.positions["kvc_heard"].tolist() == [16] * ROWS


def test_several_answers_hear_one_input(session, program):
    said = {"temperature": 1.5, "seed": 2, "max_tokens": 6}
    heard = text(9)[0]
    run = generate(session, heard, n=ROWS, **said)
    list(run)
    with program.session(batch=ROWS) as rows:
        other = generate(rows, [heard] * ROWS, **said)
        list(other)
    assert run.tokens == other.tokens


@RARELY
def test_padding_needs_no_places_after_the_last(tmp_path):
    """One row is almost at the end of its table of positions, the other is not."""
    model = build("bart", encoder_layers=1, decoder_layers=1)
    path = tmp_path / "model.kvc"
    cache = CacheConfig(CAPACITY, batch=2)
    export_hf(model, recipe="cpu_fp32", cache=cache, prefill_chunk=12).save(path)
    with load(path) as program, program.session(batch=2) as session:
        assert compare_at_end(model, session, rows_of(model)[:2]) < TOLERANCE


def test_rows_that_were_not_encoded_take_no_tokens(session):
    session.encode(text(3).repeat(ROWS, 0), np.array([3, 0, 2]))
    tokens = text(4).repeat(ROWS, 0)
    with pytest.raises(NotEncoded):
        session.prefill(tokens)
    with pytest.raises(NotEncoded):
        session.prefill(tokens, np.array([1, 1, 1]))
    assert session.position.tolist() == [0, 0, 0]
    session.prefill(tokens, np.array([4, 0, 2]))
    assert session.position.tolist() == [4, 0, 2]


def test_a_row_joins_with_an_input_of_its_own(model, program, session):
    """A row that is encoded by itself takes the place of one that has ended."""
    rows = rows_of(model)
    encode_rows(session, rows)
    session.prefill(text(4).repeat(ROWS, 0))
    with program.session(batch=1) as one:
        one.encode(text(11, 9))
        one.prefill(text(6, 8))
        session.admit(1, one)
        wanted = one.decode(np.array([[5]]))
    active = np.array([False, True, False])
    found = session.decode(np.full((ROWS, 1), 5), active)
    np.testing.assert_allclose(found[1], wanted[0], atol=1e-5)
    assert session.positions["kvc_heard"].tolist() == [7, 11, 17]


def test_one_row_of_a_batched_program_leaves_lengths_out(program):
    with program.session() as session:
        tokens = list(generate(session, text(9), max_tokens=8))
        assert len(tokens) > 0
        assert session.positions["kvc_heard"].tolist() == [9]


def test_lengths_past_the_input_are_refused(session):
    with pytest.raises(InputMismatch, match="row lengths of 0 to 3"):
        session.encode(text(3).repeat(ROWS, 0), np.array([3, 4, 2]))


def test_several_prompts_need_a_program_with_rows(model, program):
    with (
        program.session(batch=2) as session,
        pytest.raises(BadSetting, match="rows, 2"),
    ):
        generate(session, [[3], [4], [5]])


@RARELY
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_rows_of_each_architecture_are_as_alone(name, tmp_path):
    model = build(name)
    length = HEARD if model.main_input_name == "input_ids" else None
    cache = CacheConfig(CAPACITY, batch=ROWS, encoder_length=length)
    export_hf(model, cache=cache, prefill_chunk=12).save(tmp_path / "model.kvc")
    path = tmp_path / "model.kvc"
    with load(path) as program, program.session(batch=ROWS) as session:
        far, other = compare_rows(model, session, rows_of(model))
    assert far < TOLERANCE
    assert other > NOTICED * far
    with load(path) as program, program.session(batch=2) as session:
        assert compare_at_end(model, session, rows_of(model)[:2]) < TOLERANCE
