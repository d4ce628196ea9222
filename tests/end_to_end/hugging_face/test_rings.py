"""Layers that see a window keep no more than that: long texts, going back, memory.

A text is several times the window; what is compared is the model of transformers in
eager attention on the whole text, without a cache.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import RARELY, only
from hf_models import WINDOW, build
from hf_parity import NOTICED, TOLERANCE, eager_logits, text, zero_row
from resident_memory import LINUX
from transformers import PreTrainedModel

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.caches.layer_shapes import LayerShape
from kvc.compiler.hugging_face.reading.settings import Sizes
from kvc.recipes import load_recipe
from kvc.runtime import NotRewindable, Program, generate, load
from kvc.schema.model import StateKind
from kvc.schema.rings import Window

CHUNK, SLACK, LENGTH = 6, 3, 100
SLOTS = WINDOW + CHUNK - 1 + SLACK
# Which layers of each see a window; the second list has those that do not.
MODELS = {
    "mistral": ([0, 1], []),
    "gemma2": ([0], [1]),
    "gemma3_text": ([0], [1]),
    "gpt_oss": ([0], [1]),
    "phi3, sliding": ([0, 1], []),
    "qwen2, sliding": ([1], [0]),
    "starcoder2": ([0, 1], []),
    "cohere2": ([0], [1]),
    "gpt_neo": ([1], [0]),
}
DAILY = ("gemma2",)


def compiled(
    model: PreTrainedModel,
    folder: Path,
    slack: int = SLACK,
    batch: int = 1,
    **settings: object,
) -> Program:
    path, cache = folder / "model.kvc", CacheConfig(LENGTH, slack=slack, batch=batch)
    export_hf(model, cache=cache, prefill_chunk=CHUNK, **settings).save(path)
    return load(path)


@pytest.fixture(scope="module")
def program_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Program]]:
    with ExitStack() as stack:

        @cache
        def made(name: str) -> Program:
            folder = tmp_path_factory.mktemp("rings")
            return stack.enter_context(compiled(build(name), folder, all_logits=True))

        yield made


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with compiled(build("mistral"), tmp_path_factory.mktemp("mistral")) as program:
        yield program


@RARELY
@pytest.mark.parametrize("name", MODELS)
def test_a_text_of_many_windows_gives_the_model_s_logits(name, program_of):
    tokens = text(LENGTH)
    wanted = eager_logits(build(name), tokens)
    spread = wanted.std()
    rings, linear = MODELS[name]
    program = program_of(name)
    for layer in rings:
        state = program.states[f"kvc_cache.{layer}.keys"]
        assert (state.kind, state.window) == (StateKind.RING, Window(WINDOW))
        assert state.type.dims[2] == SLOTS
    for layer in linear:
        assert program.states[f"kvc_cache.{layer}.keys"].kind is StateKind.LINEAR
    with program.session() as session:
        assert (session.capacity, session.longest_call) == (LENGTH, CHUNK + SLACK)
        # Longer than a call may be: in pieces.
        found = session.prefill(tokens[:, :50])
        assert np.abs(found - wanted[49]).max() < TOLERANCE * spread
        for place in range(50, 90):
            found = session.decode(tokens[:, place : place + 1])
            assert np.abs(found - wanted[place]).max() < TOLERANCE * spread


@only(name=DAILY)
@pytest.mark.parametrize("name", MODELS)
def test_a_text_goes_back_as_far_as_the_slack_and_on(name, program_of):
    tokens = text(LENGTH)
    wanted = eager_logits(build(name), tokens)
    spread = wanted.std()
    with program_of(name).session() as session:
        session.prefill(tokens[:, :90])
        session.rewind(CHUNK + SLACK)
        with pytest.raises(NotRewindable):
            session.rewind(1)
        start = 90 - CHUNK - SLACK
        found = session.prefill_all(tokens[:, start : start + CHUNK])
        here = wanted[start : start + CHUNK]
        assert np.abs(found[0] - here).max() < TOLERANCE * spread
        # The control: a slot that the next query sees.
        place = start + CHUNK
        ring = f"kvc_cache.{MODELS[name][0][0]}.keys"
        zero_row(session.state[ring], (place - 2) % SLOTS)
        found = session.decode(tokens[:, place : place + 1])
        assert np.abs(found - wanted[place]).max() > NOTICED * spread


@RARELY
def test_a_slot_behind_the_window_changes_nothing(mistral):
    tokens, found = text(LENGTH), []
    for back in (None, WINDOW, WINDOW - 1):
        with mistral.session() as session:
            session.prefill(tokens[:, :60])
            for layer in (0, 1) if back else ():
                slot = (60 - back) % SLOTS
                zero_row(session.state[f"kvc_cache.{layer}.keys"], slot)
                zero_row(session.state[f"kvc_cache.{layer}.values"], slot)
            found.append(session.decode(tokens[:, 60:61]))
    assert np.array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > NOTICED * found[0].std()


@RARELY
def test_a_window_as_long_as_the_text_is_kept_whole(tmp_path):
    slack = LENGTH - WINDOW - (CHUNK - 1)
    with compiled(build("mistral", shallow=True), tmp_path, slack) as program:
        assert program.states["kvc_cache.0.keys"].kind is StateKind.LINEAR
        assert program.session(capacity=20).capacity == 20
    shape = LayerShape(1, 4, 4, torch.float32, Window(WINDOW))
    for spare, slots in ((LENGTH - WINDOW - 1, LENGTH - 1), (LENGTH - WINDOW, None)):
        assert shape.ring_slots(Sizes(LENGTH, 1, CHUNK, spare)) == slots


@RARELY
def test_a_prefill_of_its_own_size_counts_for_the_longest_call(tmp_path):
    model = build("mistral", shallow=True)
    with compiled(model, tmp_path, prefill_sizes=[20]) as program:
        state = program.states["kvc_cache.0.keys"]
        assert state.type.dims[2] == WINDOW + 20 - 1 + SLACK
        tokens = text(LENGTH)
        wanted = eager_logits(model, tokens)
        with program.session() as session:
            for start in (0, 20, 40):
                found = session.prefill_20(tokens[:, start : start + 20])
                near = np.abs(found - wanted[start + 19]).max()
                assert near < TOLERANCE * wanted.std()


def test_a_generation_goes_past_the_window(program_of):
    tokens = text(40)
    with program_of("gemma2").session() as session:
        run = generate(session, tokens[0].tolist(), max_tokens=50, stop_tokens=[])
        whole = np.concatenate([tokens, [list(run)]], 1)
    wanted = eager_logits(build("gemma2"), whole)
    assert wanted[39:-1].argmax(1).tolist() == whole[0, 40:].tolist()


@RARELY
def test_rings_of_several_rows_and_of_int8(tmp_path):
    tokens = np.concatenate([text(LENGTH), text(LENGTH)[:, ::-1]])
    model, int8 = build("mistral", shallow=True), load_recipe("fp32", cache="int8")
    wanted = [eager_logits(model, row[None]) for row in tokens]
    with compiled(model, tmp_path, batch=2, recipe=int8) as program:
        assert program.states["kvc_cache.0.keys.scale"].window == Window(WINDOW)
        with program.session(batch=2) as session:
            session.prefill(tokens[:, :50])
            session.rewind(np.array([2, 5]))
            agreed = 0
            for step in range(30):
                at = (48 + step, 45 + step)
                given = np.stack([tokens[r, p : p + 1] for r, p in enumerate(at)])
                found = session.decode(given)
                for row, place in enumerate(at):
                    agreed += found[row].argmax() == wanted[row][place].argmax()
            assert agreed > 45


@RARELY
@LINUX
def test_memory_is_that_of_the_window(mistral):
    with mistral.session() as session:
        session.prefill(text(SLOTS))
        held = session.residency().own
        session.prefill(text(LENGTH - SLOTS))
        assert session.residency().own == held
