"""A model whose first position is not 0: a full table of positions, and padding.

RoBERTa's positions begin after that of its padding token, 1: here its table has 130,
and a text 128 tokens at the most.
"""

import numpy as np
import pytest
import torch
from daily import RARELY
from hf_models import build
from hf_parity import NOTICED, TOLERANCE, text

from kvc.compiler import export_hf
from kvc.runtime import load
from kvc.schema.errors import CacheOverflow

FIRST, LONGEST, PADDING = 2, 128, 1


@pytest.fixture(scope="module")
def model():
    return build("roberta", shallow=True)


@pytest.fixture(scope="module")
def program(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("roberta") / "roberta.kvc"
    export_hf(model, prefill_chunk=LONGEST, all_logits=True).save(path)
    with load(path) as program:
        yield program


def difference(logits, tokens, model, **given):
    """Return how far logits [seq, vocab] are from a model's on a whole text."""
    with torch.no_grad():
        made = model(input_ids=torch.from_numpy(tokens), use_cache=False, **given)
    wanted = made.logits[0].numpy()
    return float(np.abs(logits - wanted[-len(logits) :]).max() / wanted.std())


def from_position(first, count):
    return {"position_ids": torch.arange(count)[None] + first}


def test_a_text_fills_all_positions_that_the_model_has(model, program):
    tokens = text(LONGEST)
    with program.session(capacity=LONGEST) as session:
        session.prefill(tokens[:, :-2])
        steps = [session.decode(tokens[:, i : i + 1])[0].copy() for i in (126, 127)]
        assert session.position == LONGEST
        assert difference(np.stack(steps), tokens, model) < TOLERANCE
        with pytest.raises(CacheOverflow):
            session.decode(tokens[:, :1])
    control = difference(np.stack(steps), tokens, model, **from_position(0, LONGEST))
    assert control > NOTICED


@RARELY
def test_embeddings_stand_where_tokens_do(model, tmp_path):
    tokens, path = text(12), tmp_path / "roberta.kvc"
    embeds = model.get_input_embeddings()(torch.from_numpy(tokens)).detach().numpy()
    export_hf(model, prefill_chunk=LONGEST, inputs_embeds=True).save(path)
    with load(path) as program, program.session() as session:
        session.prefill(tokens[:, :5])
        logits = session.prefill_embeds(embeds[:, 5:])
        assert difference(logits, tokens, model) < TOLERANCE


def test_a_padding_token_in_a_text_is_a_token_like_others(model, program):
    tokens = text(12).copy()
    tokens[0, 4] = PADDING
    with program.session() as session:
        logits = session.prefill_all(tokens)[0]
    in_order = from_position(FIRST, 12)
    assert difference(logits, tokens, model, **in_order) < TOLERANCE
    assert difference(logits[:4], tokens[:, :4], model) < TOLERANCE
    assert difference(logits, tokens, model) > NOTICED  # it gives padding no position
