"""Models that read texts and pictures: the same logits, the same answers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from encoder_models import build
from seeing_models import (
    NOTICED,
    POSITIONS,
    SIDE,
    TOKEN,
    TOLERANCE,
    eager,
    gemma3,
    llava,
    picture,
    pixels,
    processor,
    save_folder,
    text_with_pictures,
)

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Session, generate, load
from kvc.schema.errors import (
    BadModelSetting,
    BadPicture,
    BadSetting,
    PromptTooLong,
    UnsupportedModel,
)
from kvc.tools.cli import main
from kvc.tools.reports.methods import describe_methods

CHUNKS = (3, 9, 12, 8, 12)  # places of pictures on both sides of their ends
BEGINS = (4, 25)
STEPS = 20
PROMPTS = ("<image> 5 6 7", "3 4 <image> 9 <image> 8", "11 12 13")


def fed(session: Session, tokens, pictures) -> list:
    """Return the logits after each chunk of embeddings, then of decode steps."""
    session.reset()
    text = session.embed_tokens(tokens[:, :12]).copy()
    parts = [session.embed_tokens(tokens[:, at : at + 11]) for at in range(12, 67, 11)]
    whole = np.concatenate([text, *parts], axis=1)
    whole[0, tokens[0, : whole.shape[1]] == TOKEN] = np.concatenate(pictures)
    ends = np.cumsum(CHUNKS)
    made = [
        session.prefill_embeds(whole[:, end - size : end])[0].copy()
        for end, size in zip(ends, CHUNKS, strict=True)
    ]
    last = int(ends[-1])
    steps = range(last, last + STEPS)
    return made + [session.decode(tokens[:, i : i + 1])[0].copy() for i in steps]


def expected(logits):
    ends = np.cumsum(CHUNKS)
    return [*logits[ends - 1], *logits[ends[-1] : ends[-1] + STEPS]]


@pytest.fixture(scope="module")
def model():
    return llava()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    return save_folder(tmp_path_factory.mktemp("llava"), model)


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "llava.kvc"
    cache = CacheConfig(100)
    export_hf(folder, recipe="cpu_fp32", cache=cache, prefill_chunk=12).save(path)
    return path


@pytest.mark.parametrize("recipe", ["fp32", "cpu_fp32"])
def test_logits_are_those_of_the_model_with_its_pictures(model, recipe, tmp_path):
    made = export_hf(model, recipe=recipe, cache=CacheConfig(100), prefill_chunk=12)
    made.save(tmp_path / "model.kvc")
    tokens, given = text_with_pictures(67, BEGINS), pixels(2)
    logits = eager(model, tokens, given)
    with load(tmp_path / "model.kvc") as program, program.session() as session:
        pictures = [program.embed_image(one[None]).copy() for one in given]
        found = fed(session, tokens, pictures)
        pictures[1][3] = pictures[1][4]
        changed = fed(session, tokens, pictures)
    wanted, spread = expected(logits), float(logits.std())
    assert np.abs(np.array(found) - wanted).max() < TOLERANCE * spread
    assert np.abs(np.array(changed) - wanted)[3:].max() > NOTICED * spread
    assert [one.shape for one in pictures] == [(POSITIONS, 64)] * 2


@pytest.mark.parametrize("recipe", ["cpu_fp32", "cpu_q8"])
def test_it_runs_natively_whole(model, recipe):
    made = export_hf(model, recipe=recipe, cache=CacheConfig(100), prefill_chunk=12)
    methods = {one.name: one.left for one in describe_methods(made.program)}
    assert methods.keys() == {
        "prefill", "decode", "prefill_embeds", "embed_image", "embed_tokens"
    }  # fmt: skip
    assert all(left == {} for left in methods.values())


@pytest.mark.parametrize("prompt", PROMPTS)
def test_answers_are_those_of_transformers(model, bundle, prompt):
    images = [picture(i) for i in range(prompt.count("<image>"))]
    given = processor()(images=images or None, text=prompt, return_tensors="pt")
    limit = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": [95]}
    with torch.no_grad():
        wanted = model.generate(**given, **limit)[0, given["input_ids"].shape[1] :]
    with load(bundle) as program, program.session() as session:
        run = generate(session, prompt, images=images, max_tokens=STEPS, stop_tokens=95)
        assert list(run) == [token for token in wanted.tolist() if token != 95]


def test_another_picture_gives_another_answer(bundle):
    with load(bundle) as program:
        answers = set()
        for seed in range(3):
            with program.session() as session:
                run = generate(
                    session, PROMPTS[0], images=[picture(seed)], max_tokens=STEPS
                )
                answers.add(tuple(run))
    assert len(answers) == 3


def test_tokens_may_have_the_token_of_a_picture_once_or_in_all_places(bundle):
    once, images = [5, TOKEN, 6, 7], [picture(0)]
    whole = [5, *[TOKEN] * POSITIONS, 6, 7]
    with load(bundle) as program:
        answers = []
        for prompt in (once, whole, "5 <image> 6 7"):
            with program.session() as session:
                answers.append(
                    list(generate(session, prompt, images=images, max_tokens=STEPS))
                )
    assert answers[0] == answers[1] == answers[2]


def test_a_later_turn_brings_another_picture(bundle):
    first, then = "3 <image> 4 5", "6 <image> 7"
    with load(bundle) as program:
        with program.session() as session:
            limit = {"stop_tokens": 95}
            run = generate(session, first, images=[picture(0)], max_tokens=4, **limit)
            said = list(run)
            more = [*run.pending, 6, TOKEN, 7]
            limit["max_tokens"] = STEPS
            turns = list(generate(session, more, images=[picture(1)], **limit))
        with program.session() as session:
            text = " ".join([first, *map(str, said), then])
            images = [picture(0), picture(1)]
            whole = list(generate(session, text, images=images, **limit))
    assert len(turns) == STEPS
    assert turns == whole


@pytest.mark.parametrize(
    ("prompt", "count", "says"),
    [
        ("5 6", 1, "'<image>' once for each picture, 1 times, got 0"),
        ("5 <image> <image>", 1, "1 times, got 2"),
        ("5 <image>", 0, "none of '<image>'"),
        ([5, TOKEN, 6], 0, "none of the token 90"),
        ([5, TOKEN, TOKEN], 1, "1 times, got 2"),
    ],
)
def test_a_prompt_has_a_place_for_each_picture(bundle, prompt, count, says):
    images = [picture(0)] * count
    with load(bundle) as program, program.session() as session:
        with pytest.raises(BadSetting, match=says):
            generate(session, prompt, images=images)
        assert session.position == 0


@pytest.mark.parametrize("images", ["a.png", [5], 7])
def test_what_is_no_picture_is_refused(bundle, images):
    with (
        load(bundle) as program,
        program.session() as session,
        pytest.raises(BadSetting, match="picture"),
    ):
        generate(session, "<image> 5", images=images)


def test_a_file_that_is_no_picture_is_refused(bundle, tmp_path):
    (tmp_path / "a.png").write_text("words")
    with (
        load(bundle) as program,
        program.session() as session,
        pytest.raises(BadPicture, match=r"a\.png"),
    ):
        generate(session, "<image> 5", images=[tmp_path / "a.png"])


def test_pictures_past_the_capacity_are_refused_before_anything_runs(bundle):
    with load(bundle) as program, program.session(capacity=20) as session:
        with pytest.raises(PromptTooLong):
            generate(session, "<image> 5 <image>", images=[picture(0), picture(1)])
        assert session.position == 0


def test_pictures_come_with_one_prompt(bundle):
    with (
        load(bundle) as program,
        program.session() as session,
        pytest.raises(BadSetting, match="images: expected none, or one prompt"),
    ):
        generate(session, ["<image> 5", "6"], images=[picture(0)])


def test_the_model_without_pictures_has_none(folder, tmp_path):
    cache = CacheConfig(100)
    made = export_hf(folder, recipe="cpu_fp32", cache=cache, pictures=False)
    made.save(tmp_path / "text.kvc")
    with load(tmp_path / "text.kvc") as program, program.session() as session:
        assert sorted(program.methods) == ["decode", "prefill"]
        with pytest.raises(BadSetting, match="reads no pictures"):
            generate(session, "3 4", images=[picture(0)])


def test_metadata_says_how_a_prompt_is_expanded(bundle):
    with load(bundle) as program:
        places = json.loads(program.metadata["picture_places"])
        pictures = json.loads(program.metadata["pictures"])
    assert places == {
        "token": TOKEN,
        "positions": POSITIONS,
        "placeholder": "<image>",
        "expansion": "<image>" * POSITIONS,
    }
    assert (pictures["method"], pictures["crop"]) == ("embed_image", [SIDE, SIDE])


def test_the_command_reads_pictures(bundle, tmp_path):
    files = []
    for seed in range(2):
        picture(seed).save(tmp_path / f"{seed}.png")
        files += ["--image", str(tmp_path / f"{seed}.png")]
    arguments = ["generate", str(bundle), "5 <image> 6 <image>", "--max-tokens", "9"]
    found = CliRunner().invoke(main, [*arguments, *files])
    assert found.exit_code == 0, found.stderr
    with load(bundle) as program, program.session() as session:
        images = [picture(0), picture(1)]
        run = generate(session, arguments[2], images=images, max_tokens=9)
        assert found.stdout == "".join(run.text())
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 1
    assert "none of '<image>'" in found.stderr


def test_a_model_whose_pictures_see_both_ways_is_refused():
    with pytest.raises(UnsupportedModel, match="--no-pictures"):
        export_hf(gemma3(), cache=CacheConfig(64))


def test_a_processor_that_makes_other_prompts_is_refused(folder, tmp_path, model):
    save_folder(tmp_path, model)
    found = json.loads((tmp_path / "processor_config.json").read_text())
    found["num_additional_image_tokens"] = 0
    (tmp_path / "processor_config.json").write_text(json.dumps(found))
    with pytest.raises(UnsupportedModel, match="15 places in a prompt"):
        export_hf(tmp_path, cache=CacheConfig(64))


def test_a_model_without_a_cache_takes_no_such_argument():
    with pytest.raises(BadModelSetting, match="has no cache"):
        export_hf(build("bert"), pictures=False)
