"""Batches: the tokens of transformers' own left-padded batch, and of each row alone.

Rows of different lengths stand at different positions, in chunks and one token at a
time; what a wrong row of a cache does to its own logits, and to no others, is the
control.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import numpy as np
import pytest
import torch
from daily import RARELY, only
from hf_models import RUNNING, VOCAB, build
from hf_parity import NOTICED, TOLERANCE, compare_rows, zero_row
from transformers import PreTrainedModel

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Program, generate, load, right_padded
from kvc.schema.errors import UnsupportedModel

Exported = tuple[PreTrainedModel, Program]


# Rotary positions and windows; every day learned ones, not from 0.
@only(name=["roberta"])
@pytest.mark.parametrize("name", ["mistral", "roberta"])
def test_rows_of_different_lengths_equal_the_model(name, tmp_path):
    assert compare_rows(name, tmp_path, shallow=True) < TOLERANCE


@RARELY
@pytest.mark.parametrize("name", [name for name in RUNNING if name != "llama4_text"])
def test_rows_of_every_architecture_equal_the_model(name, tmp_path):
    assert compare_rows(name, tmp_path) < TOLERANCE


def test_rows_of_a_model_that_scales_queries_for_all_of_them_are_refused():
    with pytest.raises(UnsupportedModel, match=r"layers\.1.*scales queries"):
        export_hf(build("llama4_text"), cache=CacheConfig(32, batch=2))


LENGTHS = (3, 11, 6)
STEPS = 12
CHUNK = 4  # tokens of one prefill
PENALTY = 5.0  # without one, tiny models say one token again and again


def padded_prompts():
    """Return left-padded tokens and their mask, int64 [3, 11]."""
    tokens = np.random.default_rng(3).integers(3, VOCAB, (3, max(LENGTHS)))
    mask = np.ones_like(tokens)
    for row, length in enumerate(LENGTHS):
        # A penalty of transformers looks at padding too: tokens that are there anyway.
        tokens[row, : max(LENGTHS) - length] = tokens[row, -1]
        mask[row, : max(LENGTHS) - length] = 0
    return tokens, mask


def transformers_batch(model, tokens, mask):
    """Return the tokens that transformers makes of a left-padded batch, by row."""
    made = model.generate(
        torch.from_numpy(tokens),
        attention_mask=torch.from_numpy(mask),
        do_sample=False,
        repetition_penalty=PENALTY,
        max_new_tokens=STEPS,
        pad_token_id=0,
    )
    return made[:, tokens.shape[1] :].tolist()


def until_stop(tokens, stop):
    """Return the tokens before the first stop token."""
    return tokens[: tokens.index(stop)] if stop in tokens else tokens


@pytest.fixture(scope="module")
def exported(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Exported]]:
    with ExitStack() as stack:

        @cache
        def export(name: str) -> Exported:
            path = tmp_path_factory.mktemp("batches") / "m.kvc"
            model, config = build(name, shallow=True), CacheConfig(32, batch=3)
            model.generation_config.eos_token_id = None  # rows stop where a test says
            export_hf(model, cache=config, prefill_chunk=CHUNK).save(path)
            return model, stack.enter_context(load(path))

        yield export


LEFT_PADDED = (
    "llama",
    "mistral",
    "opt",
    "gpt2",
    "bloom",
    "gpt_oss",
    "falcon",
    "gemma2",
)


@only(name=["llama"])
@pytest.mark.parametrize("name", LEFT_PADDED)
def test_tokens_are_those_of_a_left_padded_batch_of_transformers(name, exported):
    model, program = exported(name)
    tokens, mask = padded_prompts()
    theirs = transformers_batch(model, tokens, mask)
    stop = theirs[1][2]
    theirs = [until_stop(row, stop) for row in theirs]
    settings = {
        "max_tokens": STEPS,
        "repetition_penalty": PENALTY,
        "stop_tokens": [stop],
    }
    with program.session(batch=3) as session:
        run = generate(session, tokens, attention_mask=mask, **settings)
        list(run)
        assert list(run.tokens) == theirs
        assert len({len(row) for row in theirs}) > 1
        rows = zip(*right_padded(tokens, mask), strict=True)
        for row, (prompt, length) in enumerate(rows):
            with program.session() as single:
                alone = generate(single, prompt[:length], **settings)
                assert list(alone) == run.tokens[row]


# Of rings and of recurrent states; others have both.
@only(name=["mistral", "mamba"])
@pytest.mark.parametrize("name", ["mistral", "mamba", "falcon_h1", "gemma2", "bloom"])
def test_beams_are_those_of_transformers(name, exported):
    """Rows of caches, of rings with a window, and of recurrent states are copied."""
    model, program = exported(name)
    prompt = np.random.default_rng(5).integers(3, VOCAB, (1, 11))
    settings = {"num_beams": 3, "max_new_tokens": STEPS, "repetition_penalty": 1.8}
    first = model.generate(torch.from_numpy(prompt), do_sample=False, **settings)
    for stop in (None, int(first[0, prompt.shape[1] + 2])):
        wanted = model.generate(
            torch.from_numpy(prompt),
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=0,
            **settings,
        )[0, prompt.shape[1] :].tolist()
        stops = [] if stop is None else [stop]
        with program.session(batch=3) as session:
            run = generate(session, prompt[0], stop_tokens=stops, **settings)
            made = list(run)
            assert made == until_stop(wanted, stop)[: len(made)]
            assert len(made) == len(until_stop(wanted, stop))


def test_a_wrong_row_of_the_cache_shows_in_that_row_alone(exported):
    tokens, lengths = right_padded(*padded_prompts())
    active = np.array([True, True, False])
    with exported("llama")[1].session(batch=3) as session:

        def step(spoilt):
            session.reset()
            session.prefill(tokens[:, :CHUNK], np.minimum(lengths, CHUNK))
            for name in session.state:
                if spoilt and name.endswith(".values"):
                    zero_row(session.state[name], 2, batch_row=1)
            return session.decode(tokens[:, :1], active)

        right, wrong = step(False), step(True)
    spread = right[:2].std()
    np.testing.assert_allclose(wrong[0], right[0], atol=TOLERANCE * spread)
    assert np.abs(wrong[1] - right[1]).max() > NOTICED * spread
