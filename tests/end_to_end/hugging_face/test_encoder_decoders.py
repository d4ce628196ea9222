"""Models with an encoder: the same logits and text, one encoding for many answers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hf_models import rescale
from seq2seq_models import (
    CAPACITY,
    SEQ2SEQ,
    TOLERANCE,
    build,
    compare,
    eager_logits,
    measure,
    text,
)
from small_tokenizers import unigram
from tokenizers import Tokenizer, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Conversation, Program, generate, load
from kvc.runtime.tokenizers import Ids
from kvc.schema.errors import (
    BadModelSetting,
    BadSetting,
    CacheOverflow,
    InputMismatch,
    NotEncoded,
    UnknownName,
)
from kvc.schema.graph import AccessMode
from kvc.tools.cli import main

HEARD = 40
# Of which the encoder takes tokens.
READING = [
    name
    for name, (kind, _) in SEQ2SEQ.items()
    if kind not in ("whisper", "vision-encoder-decoder")
]
SENTENCE = "Once upon a time there was a small compiler."
SETTINGS = [
    {},
    {"repetition_penalty": 1.7},
    {"forced_bos_token_id": 7, "repetition_penalty": 1.7},
    {"forced_eos_token_id": [9, 6], "repetition_penalty": 1.7},
    {"suppress_tokens": list(range(40, 70)), "repetition_penalty": 1.7},
    {"begin_suppress_tokens": list(range(3, 90)), "repetition_penalty": 1.7},
    {"forced_bos_token_id": 7, "begin_suppress_tokens": list(range(3, 90))},
]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return build("t5", vocab_size=420, num_layers=1)


@pytest.fixture(scope="module")
def folder(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it is published: weights, settings, a tokenizer that ends texts."""
    path = tmp_path_factory.mktemp("t5")
    model.save_pretrained(path)
    tokenizer = unigram()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def program(folder: Path) -> Iterator[Program]:
    lengths = ["--max-length", str(CAPACITY), "--max-encoder-length", str(HEARD)]
    path = folder / "t5.kvc"
    options = ["--recipe", "cpu_fp32", *lengths, "-o", str(path), "-q"]
    made = CliRunner().invoke(main, ["compile", str(folder), *options])
    assert made.exit_code == 0, made.output
    with load(path) as opened:
        yield opened


def test_logits_are_those_of_the_model(model, session):
    found = measure(model, session, [text(n, 3) for n in (1, 2, 17)])
    assert found.far < TOLERANCE
    assert found.noticed


@pytest.mark.parametrize("settings", SETTINGS)
def test_text_is_what_transformers_generates(model, session, settings):
    for length in (1, 16):
        given = text(length, length)
        whole = model.generate(
            torch.from_numpy(given), do_sample=False, max_new_tokens=20, **settings
        )
        run = generate(session, given, max_tokens=20, **settings)
        tokens = list(run)
        ended = run.pending if run.reason == "stop" else ()
        assert [0, *tokens, *ended] == whole[0].tolist()


def test_the_command_line_answers_a_text(model, program, folder):
    run = CliRunner().invoke(
        main, ["generate", str(folder / "t5.kvc"), SENTENCE, "--max-tokens", "12"]
    )
    assert run.exit_code == 0, run.output
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    given = torch.tensor([tokenizer.encode(SENTENCE).ids])
    assert given[0, -1] == 1  # the end of a text, which its tokenizer adds
    whole = model.generate(given, do_sample=False, max_new_tokens=12)[0].tolist()
    assert run.stdout.strip() == tokenizer.decode(whole).strip()
    options = ["--max-tokens", "12", "--forced-bos", "9"]
    run = CliRunner().invoke(
        main, ["generate", str(folder / "t5.kvc"), SENTENCE, *options]
    )
    settings = {"do_sample": False, "max_new_tokens": 12, "forced_bos_token_id": 9}
    whole = model.generate(given, **settings)[0].tolist()
    assert run.stdout.strip() == tokenizer.decode(whole).strip()


def test_a_decoder_begins_with_what_it_is_given(model, session):
    given = text(9)
    start = torch.tensor([[0, 5, 8]])
    whole = model.generate(
        torch.from_numpy(given), decoder_input_ids=start, do_sample=False,
        max_new_tokens=8,
    )  # fmt: skip
    tokens = list(generate(session, given, decoder_prompt=[0, 5, 8], max_tokens=8))
    assert [0, 5, 8, *tokens] == whole[0].tolist()


def test_an_answer_goes_on_to_the_end_of_the_decoders_cache(program):
    with program.session(capacity={"encoder": 20, "decoder": 16}) as session:
        run = generate(session, text(20), suppress_tokens=[1])
        assert len(list(run)) == 16
        assert run.reason == "length"


def test_no_method_copies_a_cache(program):
    for method in program.methods.values():
        written = [access for update in method.updates for access in update.accesses]
        appended = [one for one in written if one.mode is AccessMode.SLOTS]
        assert len(appended) == 2
        assert not any(update.copies for update in method.updates)


def test_the_cross_cache_is_as_long_as_what_was_encoded(program):
    with program.session() as session:
        session.encode(text(HEARD))
        whole = {name: np.array(session.state[name]) for name in session.state}
        session.encode(text(3))
        short = {name: np.array(session.state[name]) for name in session.state}
    cross = [name for name in whole if name.startswith("kvc_cross")]
    assert len(cross) == 2
    for name in cross:
        assert whole[name].any(axis=3).all()
        assert short[name][:, :, :3].any(axis=3).all()
        assert not short[name][:, :, 3:].any()


def test_a_second_encode_replaces_the_first_and_the_decoder_begins_anew(model, session):
    session.encode(text(20, 1))
    session.prefill(text(5))
    given, tokens = text(4, 2), text(6, 8)
    session.encode(given)
    assert session.position.tolist() == [0]
    wanted = eager_logits(model, given, tokens)
    found = session.prefill(tokens)
    np.testing.assert_allclose(found[0], wanted[-1], atol=TOLERANCE * wanted.std())


def test_a_rewind_keeps_the_encoding(model, session):
    given, tokens = text(11, 4), text(9, 5)
    session.encode(given)
    session.prefill(text(7, 6))
    session.rewind(7)
    wanted = eager_logits(model, given, tokens)
    found = session.prefill(tokens)
    np.testing.assert_allclose(found[0], wanted[-1], atol=TOLERANCE * wanted.std())


def test_answers_of_forks_share_one_encoding(model, session):
    given = text(HEARD, 4)
    session.encode(given)
    own = session.residency().own
    assert own > 0
    with session.fork() as one, session.fork() as other:
        assert one.residency().own == other.residency().own == 0
        assert one.residency().shared == other.residency().shared == own
        for seed, each in ((5, one), (6, other), (7, session)):
            tokens = text(9, seed)
            wanted = eager_logits(model, given, tokens)
            found = each.prefill(tokens)[0]
            atol = TOLERANCE * wanted.std()
            np.testing.assert_allclose(found, wanted[-1], atol=atol)
        one.encode(text(3))  # is its own from now on
        assert session.positions["kvc_heard"].tolist() == [HEARD]


def test_a_saved_session_has_its_encoding(program, tmp_path):
    with program.session(capacity={"encoder": 30, "decoder": 20}) as session:
        session.encode(text(30))
        session.prefill(text(4))
        session.save(tmp_path / "saved")
        wanted = session.decode(np.array([[5]]))
    with program.restore(tmp_path / "saved") as session:
        assert session.capacity == 20
        np.testing.assert_array_equal(session.decode(np.array([[5]])), wanted)


def test_a_decoder_without_an_encoding_is_refused(session):
    for name, tokens in (("prefill", text(3)), ("decode", text(1))):
        with pytest.raises(NotEncoded, match=f"{name} needs the result of encode"):
            session.call(name, tokens)
    session.encode(text(3))
    session.prefill(text(3))
    session.reset()
    with pytest.raises(NotEncoded):
        session.decode(text(1))


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (text(0), InputMismatch, "heard in 1..40"),
        (text(HEARD + 1), InputMismatch, "heard in 1..40"),
        (text(3) + 420, InputMismatch, "tokens of 0 to 419"),
        (text(21), CacheOverflow, "the cache holds 20"),
    ],
)
def test_an_impossible_input_leaves_the_session_as_it_was(program, given, kind, says):
    with program.session(capacity={"encoder": 20}) as session:
        session.encode(text(20))
        session.prefill(text(4))
        with session.fork() as twin:
            wanted = twin.decode(np.array([[5]]))
        with pytest.raises(kind, match=says):
            session.encode(given)
        np.testing.assert_array_equal(session.decode(np.array([[5]])), wanted)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"prompt": [[3, 4], [5, 6]]}, "prompt"),
        ({"prompt": [3], "history": [4]}, "history"),
        ({"prompt": [3], "images": ["a.png"]}, "images"),
        ({"prompt": [3], "decoder_prompt": []}, "prompt"),
        ({"prompt": [3], "decoder_prompt": "a"}, "decoder_prompt"),
    ],
)
def test_what_an_encoder_does_not_take_is_refused(session, settings, name):
    with pytest.raises(BadSetting) as raised:
        generate(session, **settings)
    assert raised.value.name == name


def test_a_chat_has_no_encoder(session):
    with pytest.raises(BadSetting, match="without an encoder, for a chat"):
        Conversation(session, Ids(), None)


def test_sizes_are_chosen_for_each_cache_by_name(program):
    with program.session(capacity={"encoder": 7, "decoder": 20}) as session:
        assert session.state["kvc_cross.0.keys"].shape[2] == 7
        assert session.state["kvc_cache.0.keys"].shape[2] == session.capacity == 20
    with program.session(18) as session:
        assert session.state["kvc_cache.0.keys"].shape[2] == session.capacity == 18
    with pytest.raises(UnknownName, match="decoder, encoder"):
        program.session(capacity={"decode": 20})
    with pytest.raises(BadSetting, match="each size once"):
        program.session(capacity={"decoder": 20}, decoder=20)
    with pytest.raises(BadSetting, match="one size"):
        program.session(18, decoder=20)


def test_what_a_model_with_an_encoder_cannot_have_is_refused():
    model = build("bart")
    with pytest.raises(BadModelSetting, match="at most 64, the limit of the model's"):
        export_hf(model, cache=CacheConfig(encoder_length=65))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_each_architecture_has_the_logits_of_its_model(name, tmp_path):
    found = compare(name, tmp_path)
    assert found.far < TOLERANCE
    assert found.noticed


@pytest.mark.exhaustive
def test_a_decoder_that_could_have_an_encoder_runs_without_one(tmp_path):
    alone = {"is_decoder": True, "is_encoder_decoder": False}
    config = AutoConfig.for_model("bart", **SEQ2SEQ["bart"][1] | alone)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    rescale(model, seed=0)
    model.eval()
    tokens = text(30)
    with torch.no_grad():
        made = model(torch.from_numpy(tokens), use_cache=False)
    wanted = made.logits[0].numpy()
    export_hf(model, cache=CacheConfig(CAPACITY)).save(tmp_path / "model.kvc")
    with load(tmp_path / "model.kvc") as program, program.session() as session:
        found = [session.prefill(tokens[:, :5])[0]]
        found += [session.decode(tokens[:, i : i + 1])[0] for i in range(5, 30)]
    atol = TOLERANCE * wanted.std()
    np.testing.assert_allclose(np.stack(found), wanted[4:], atol=atol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("recipe", ["cpu_fp32", "cpu_q8", "xnnpack_q8"])
@pytest.mark.parametrize("name", ["t5, gated", "bart", "m2m_100"])
def test_recipes_stay_near_the_model(name, recipe, tmp_path):
    assert compare(name, tmp_path, recipe=recipe).agreement > 0.75


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", READING)
def test_the_text_of_each_architectures_folder_is_that_of_transformers(name, tmp_path):
    model = build(name)
    model.save_pretrained(tmp_path / "folder")
    cache = CacheConfig(CAPACITY, encoder_length=HEARD)
    export_hf(tmp_path / "folder", cache=cache).save(tmp_path / "model.kvc")
    settings = {"max_new_tokens": 24, "repetition_penalty": 1.5}
    with load(tmp_path / "model.kvc") as program, program.session() as session:
        for length in (1, 13):
            given = text(length, length)
            whole = model.generate(torch.from_numpy(given), do_sample=False, **settings)
            run = generate(session, given, **settings)
            tokens = list(run)
            ended = run.pending if run.reason == "stop" else ()
            assert [*whole[0, :1].tolist(), *tokens, *ended] == whole[0].tolist()
