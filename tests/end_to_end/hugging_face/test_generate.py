"""Text of a bundle is what transformers generates from the model itself."""

import pytest
import torch
from daily import RARELY, only
from hf_models import RUNNING, build

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import generate, load

PROMPT = [3, 9, 27, 44, 8, 61, 12, 90, 17, 33, 4, 58, 71, 2, 19, 40]


@pytest.fixture(scope="module")
def model():
    made = build("llama").eval()
    made.generation_config.eos_token_id = [2, 5]
    return made


@pytest.fixture(scope="module")
def program(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("hf") / "llama.kvc"
    export_hf(model, cache=CacheConfig(max_length=64), prefill_sizes=[16]).save(path)
    with load(path) as opened:
        yield opened


@RARELY
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_the_likeliest_tokens_are_those_of_transformers(model, program, penalty):
    settings = {"max_new_tokens": 40, "repetition_penalty": penalty}
    whole = model.generate(torch.tensor([PROMPT]), do_sample=False, **settings)
    expected = whole[0, len(PROMPT) :].tolist()
    with program.session() as session:
        run = generate(session, PROMPT, **settings)
        tokens = list(run)
        # transformers hands the stop token out, too.
        ended = run.pending if run.reason == "stop" else ()
        assert [*tokens, *ended] == expected
        assert len(tokens) >= 5


@RARELY
def test_a_prompt_goes_to_the_prefill_made_for_its_length(program, monkeypatch):
    with program.session() as session:
        calls, call = [], session.call
        monkeypatch.setattr(
            session,
            "call",
            lambda name, *args: (calls.append(name), call(name, *args))[1],
        )
        list(generate(session, PROMPT, max_tokens=2))
        list(generate(session, PROMPT[:7], max_tokens=1))
        assert calls == ["prefill_16", "decode", "prefill"]


# Of a hybrid every day; of all architectures in the exhaustive run.
DAILY = {"lfm2"}


@only(name=DAILY)
@pytest.mark.parametrize("name", RUNNING)
def test_the_text_of_a_folder_is_that_of_transformers(name, tmp_path):
    model = build(name)
    model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path / "folder")  # first: RWKV changes its weights
    whole = model.generate(
        torch.tensor([PROMPT]), do_sample=False, max_new_tokens=24, pad_token_id=0
    )
    export_hf(tmp_path / "folder", cache=CacheConfig(max_length=64)).save(
        tmp_path / "model.kvc"
    )
    with load(tmp_path / "model.kvc") as program, program.session() as session:
        tokens = list(generate(session, PROMPT, max_new_tokens=24, eos_token_id=[]))
    assert tokens == whole[0, len(PROMPT) :].tolist()
