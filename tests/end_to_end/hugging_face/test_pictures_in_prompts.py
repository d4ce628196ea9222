"""Models that read texts and pictures: the same logits, the same answers."""

import json
import subprocess
import sys
from pathlib import Path

import encoder_models
import pytest
import torch
from click.testing import CliRunner
from seeing_models import (
    CAPACITY,
    CHUNKS,
    MODELS,
    NOTICED,
    POSITIONS,
    REFUSED,
    SIDE,
    STEPS,
    TOKEN,
    TOLERANCE,
    build,
    compare,
    measure,
    picture,
    processor,
    save_folder,
    squaring_processor,
)

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Conversation, Session, generate, load
from kvc.runtime.tokenizers import tokenizer_of
from kvc.schema.container import BundleFile
from kvc.schema.errors import (
    BadModelSetting,
    BadPicture,
    BadSetting,
    PromptTooLong,
    UnsupportedModel,
)
from kvc.tools.cli import main
from kvc.tools.reports.methods import describe_methods

PROMPTS = ("<image> 5 6 7", "3 4 <image> 9 <image> 8", "11 12 13")


WITHOUT_TORCH = f"""
import sys
for name in ("torch", "transformers", "safetensors"):
    sys.modules[name] = None
from kvc.tools.cli import (main)
bundle, prompt, image = sys.argv[1:]
given = ["generate", bundle, prompt, "--image", image, "--max-tokens", "{STEPS}"]
main(given, standalone_mode=False)
"""


@pytest.fixture(scope="module")
def model():
    return build(*MODELS["llava"])


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    return save_folder(tmp_path_factory.mktemp("llava"), model)


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "llava.kvc"
    cache, chunk = CacheConfig(CAPACITY), max(CHUNKS)
    export_hf(folder, recipe="cpu_fp32", cache=cache, prefill_chunk=chunk).save(path)
    return path


def test_logits_are_those_of_the_model_with_its_pictures(model, bundle):
    found = measure(model, bundle)
    assert max(found.prefill, found.decode) < TOLERANCE
    assert found.control > NOTICED


@pytest.mark.exhaustive
def test_the_recipe_fp32_gives_these_logits_too(model, folder, tmp_path):
    found = compare(model, folder, tmp_path, "fp32")
    assert max(found.prefill, found.decode) < TOLERANCE
    assert found.control > NOTICED


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in MODELS if name != "llava"])
def test_logits_of_every_architecture_are_those_of_the_model(name, tmp_path):
    model = build(*MODELS[name])
    found = compare(model, model, tmp_path, "cpu_fp32")
    assert max(found.prefill, found.decode) < TOLERANCE
    assert found.control > NOTICED
    assert found.left == 0


METHODS = ("prefill", "decode", "prefill_embeds", "embed_image", "embed_tokens")


def test_it_answers_without_torch(bundle, tmp_path):
    check_without_torch(bundle, tmp_path)


@pytest.mark.exhaustive
def test_it_answers_without_torch_by_int8(folder, tmp_path):
    cache = CacheConfig(CAPACITY)
    made = export_hf(folder, recipe="cpu_q8", cache=cache, prefill_chunk=max(CHUNKS))
    made.save(tmp_path / "model.kvc")
    check_without_torch(tmp_path / "model.kvc", tmp_path)


def check_without_torch(path: Path, folder: Path) -> None:
    """A process that cannot import torch gives the text that this one gives."""
    with BundleFile.open(path) as file:
        left = {one.name: one.left for one in describe_methods(file.program)}
    assert left == {name: {} for name in METHODS}
    picture(0).save(folder / "a.png")
    given = str(path), PROMPTS[0], str(folder / "a.png")
    command = [sys.executable, "-c", WITHOUT_TORCH, *given]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with load(path) as program, program.session() as session:
        run = generate(session, given[1], images=[given[2]], max_tokens=STEPS)
        assert done.stdout == "".join(run.text()) + "\n"


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


def test_pictures_in_the_middle_of_a_square_are_answered_as_by_transformers(tmp_path):
    kind, settings = MODELS["deepseek_vl"]
    text = {**settings["text_config"], "num_hidden_layers": 1}
    model = build(kind, settings | {"text_config": text})
    processes = squaring_processor()
    model.save_pretrained(tmp_path)
    processes.save_pretrained(tmp_path)
    path, cache = tmp_path / "model.kvc", CacheConfig(CAPACITY)
    export_hf(tmp_path, recipe="cpu_fp32", cache=cache).save(path)
    prompt, image = "5 <image> 6 7", picture(0)
    given = processes(images=[image], text=prompt, return_tensors="pt")
    limit = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": [95]}
    with torch.no_grad():
        wanted = model.generate(**given, **limit)[0, given["input_ids"].shape[1] :]
    with load(path) as program, program.session() as session:
        run = generate(
            session, prompt, images=[image], max_tokens=STEPS, stop_tokens=95
        )
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


def test_a_picture_that_was_read_in_part_is_read_whole_again(bundle, monkeypatch):
    """All is run anew, which ends within the first picture, then once more."""
    call, prefills = Session.call, []

    def noting(session, name, *given, **named):
        prefills.extend([name] if name == "prefill_embeds" else [])
        if len(prefills) == count:
            raise KeyboardInterrupt
        return call(session, name, *given, **named)

    limit, count = {"max_tokens": 4, "stop_tokens": [95]}, 0
    with load(bundle) as program, program.session() as session:
        chat = Conversation(session, tokenizer_of(program), None, **limit)
        first = "".join(chat.say("3 <image> 4", [picture(0)]))
        session.reset()  # what a rewind that is refused leads to
        chat._held.tokens = []
        prefills.clear()
        count = 2
        monkeypatch.setattr(Session, "call", noting)
        with pytest.raises(KeyboardInterrupt):
            list(chat.say(" 5"))
        assert 1 < chat.used < POSITIONS
        count = 0
        found = "".join(chat.say(" 6"))
    with load(bundle) as program, program.session() as session:
        text = f"3 <image> 4 {first} 6"
        run = generate(session, text, images=[picture(0)], **limit)
        assert found == "".join(run.text())


@pytest.mark.parametrize(
    ("prompt", "count", "says"),
    [
        ("5 6", 1, "'<image>' once, for the picture, got 0"),
        ("5 <image> <image>", 1, "once, for the picture, got 2"),
        ("5 <image>", 2, "2 times, once for each picture, got 1"),
        ("5 <image>", 0, "none of '<image>'"),
        ([5, TOKEN, 6], 0, "none of the token 90"),
        ([5, TOKEN, TOKEN], 1, "once, for the picture, got 2"),
    ],
)
def test_a_prompt_has_a_place_for_each_picture(bundle, prompt, count, says):
    images = [picture(0)] * count
    with load(bundle) as program, program.session() as session:
        with pytest.raises(BadSetting, match=says):
            generate(session, prompt, images=images)
        assert session.position == 0


@pytest.mark.parametrize(
    "damage",
    [
        {"positions": 10**12},
        {"positions": 15},
        {"positions": "16"},
        {"token": -1},
        {"placeholder": ""},
        {"placeholder": 5},
        {"expansion": ["<image>"]},
    ],
)
def test_places_that_cannot_be_are_refused(bundle, damage, monkeypatch):
    with load(bundle) as program:
        metadata = dict(program.metadata)
    told = json.loads(metadata["picture_places"]) | damage
    metadata["picture_places"] = json.dumps(told)
    monkeypatch.setattr(Session, "metadata", metadata)
    with (
        load(bundle) as program,
        program.session() as session,
        pytest.raises(BadSetting, match="the bundle"),
    ):
        generate(session, "5 <image> 7", images=[picture(0)])


def test_a_size_that_the_model_does_not_take_is_refused_at_once(bundle, monkeypatch):
    with load(bundle) as program:
        metadata = dict(program.metadata)
    told = json.loads(metadata["pictures"]) | {"crop": [16_000, 16_000]}
    monkeypatch.setattr(Session, "metadata", metadata | {"pictures": json.dumps(told)})
    with (
        load(bundle) as program,
        program.session() as session,
        pytest.raises(BadSetting, match="16000 x 16000 of every picture"),
    ):
        generate(session, "5 <image> 7", images=[picture(0)])


@pytest.mark.parametrize("method", ["embed_image", "embed_tokens"])
def test_a_method_that_returns_something_else_is_refused(bundle, method, monkeypatch):
    call = Session.call

    def listed(session, name, *given, **named):
        made = call(session, name, *given, **named)
        return [made] if name == method else made

    monkeypatch.setattr(Session, "call", listed)
    with load(bundle) as program, program.session() as session:
        run = generate(session, "5 <image> 7", images=[picture(0)])
        with pytest.raises(BadSetting, match=f"a method {method} that returns"):
            next(run)


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


@pytest.mark.parametrize("images", ["0.png", [picture(0)], [[], picture(0)], [[], [5]]])
def test_pictures_of_several_prompts_are_listed_for_each(bundle, images):
    with (
        load(bundle) as program,
        program.session() as session,
        pytest.raises(BadSetting, match="images"),
    ):
        generate(session, ["<image> 5", "6"], images=images)


def test_several_prompts_need_a_bundle_of_several_rows(bundle):
    with (
        load(bundle) as program,
        program.session() as session,
        pytest.raises(BadSetting, match="the bundle: expected a method prefill_embeds"),
    ):
        generate(session, ["<image> 5", "6"], images=[[picture(0)], []])


def test_pictures_come_without_a_draft(bundle):
    with (
        load(bundle) as program,
        program.session() as session,
        program.session() as draft,
        pytest.raises(BadSetting, match="images: expected none beside a draft"),
    ):
        generate(session, "<image> 5", images=[picture(0)], draft=draft)


@pytest.mark.exhaustive
def test_the_model_without_pictures_has_none(folder, tmp_path):
    settings = {"cache": CacheConfig(CAPACITY), "prefill_chunk": max(CHUNKS)}
    made = export_hf(folder, recipe="cpu_fp32", pictures=False, **settings)
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
        assert found.stdout == "".join(run.text()) + "\n"
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 1
    assert "none of '<image>'" in found.stderr


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_reads_pictures_in_another_way_is_refused(name):
    kind, settings, says = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=says) as raised:
        export_hf(build(kind, settings), cache=CacheConfig(CAPACITY))
    # Of PaliGemma texts alone are refused, too: a prompt sees itself.
    assert ("--no-pictures" in str(raised.value)) == (name != "paligemma")


def test_a_processor_that_makes_other_prompts_is_refused(folder, tmp_path, model):
    save_folder(tmp_path, model)
    found = json.loads((tmp_path / "processor_config.json").read_text())
    found["num_additional_image_tokens"] = 0
    (tmp_path / "processor_config.json").write_text(json.dumps(found))
    with pytest.raises(UnsupportedModel, match="15 places in a prompt"):
        export_hf(tmp_path, cache=CacheConfig(CAPACITY))


def test_a_model_without_a_cache_takes_no_such_argument():
    with pytest.raises(BadModelSetting, match="has no cache"):
        export_hf(encoder_models.build("bert"), pictures=False)
