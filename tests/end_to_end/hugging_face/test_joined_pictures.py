"""Models in whose prompts the places of a picture see each other (Gemma 3)."""

import json
from pathlib import Path

import joined_pictures
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from daily import only
from hf_parity import zero_row
from joined_pictures import BEGIN, CAPACITY, CHUNK, END, ROWS, processor
from PIL import Image
from seeing_models import (
    JOINED,
    MODELS,
    NOTICED,
    PATCH,
    SIDE,
    TOKEN,
    TOLERANCE,
    build,
    check_the_command,
    eager,
    picture,
)

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.reading.picture_settings import read_pictures
from kvc.runtime import Session, generate, load
from kvc.runtime.embedding.pictures import pixels_of, preparation_of
from kvc.runtime.generation.image_prefill import Picturing
from kvc.runtime.generation.picture_places import places_of
from kvc.runtime.generation.preparing import prepared
from kvc.schema.container import BundleFile
from kvc.schema.errors import (
    BadModelSetting,
    BadSetting,
    CacheOverflow,
    PromptTooLong,
    UnsupportedModel,
)
from kvc.tools.cli import main
from kvc.tools.reports.methods import describe_methods

STEPS = 40
PROMPTS = {"3 4 <boi> 5 6 7 8 9 10 11": 1, "<boi> 5 6 <boi> 7": 2, "5 6 7": 0}


@pytest.fixture(scope="module")
def model():
    return joined_pictures.model()


@pytest.fixture(scope="module")
def folder(joined_folder) -> Path:
    return joined_folder


@pytest.fixture(scope="module")
def bundle(joined_bundle) -> Path:
    return joined_bundle


@pytest.fixture
def session(bundle):
    with load(bundle) as program, program.session() as opened:
        yield opened


def tokens_of(prompt: str) -> list[int]:
    """Return what the processor of transformers makes of a prompt."""
    images = [picture(i) for i in range(PROMPTS[prompt])]
    return processor()(images=images or None, text=prompt)["input_ids"][0]


def wanted_of(model, tokens: list[int], images: int) -> np.ndarray:
    """Return logits of the model itself, in eager mode and without a cache."""
    made = processor().image_processor([picture(i) for i in range(images)])
    given = np.stack(made["pixel_values"])
    return eager(model, np.array([tokens]), given)


def picturing_on(session: Session, images) -> Picturing:
    """Return what gives the embeddings of one prompt with pictures."""
    places = places_of(session)
    return Picturing(session, places, [prepared(session, places, images)])


def fed(session: Session, tokens: list[int], images: int, held: int) -> np.ndarray:
    """Return the logits after each chunk of a prompt, then of decode steps."""
    given = [picture(i) for i in range(images)]
    picturing = picturing_on(session, given)
    made, at = [], 0
    for feed in picturing.plan([tokens[:held]]):
        part = picturing.embeddings([tokens], [at], feed.counts)
        made.append(session.call(feed.method, part)[0].copy())
        at += feed.counts[0]
    made += [session.decode(np.array([[one]]))[0].copy() for one in tokens[held:]]
    return np.stack(made)


def ends_of(session: Session, tokens: list[int], images: int, held: int) -> list[int]:
    """Return the last place of each chunk, then of each decode step."""
    given = [picture(i) for i in range(images)]
    picturing = picturing_on(session, given)
    chunks = [feed.counts[0] for feed in picturing.plan([tokens[:held]])]
    return [*(np.cumsum(chunks) - 1), *range(held, len(tokens))]


def test_logits_are_those_of_the_model_after_chunks_and_40_steps(model, session):
    prompt = tokens_of("<boi> 5 6 <boi> 7")
    more = np.random.default_rng(7).integers(3, BEGIN, STEPS).tolist()
    whole, held = [*prompt, *more], len(prompt)
    wanted = wanted_of(model, whole, 2)[ends_of(session, whole, 2, held)]
    assert (
        np.abs(fed(session, whole, 2, held) - wanted).max() < TOLERANCE * wanted.std()
    )


@pytest.mark.parametrize("layer", [0, 1])
def test_a_wrong_row_of_a_cache_is_noticed(model, session, layer):
    prompt = tokens_of("3 4 <boi> 5 6 7 8 9 10 11")
    held = prompt.index(END)
    fed(session, prompt[:held], 1, held)
    for name in ("keys", "values"):
        zero_row(session.state[f"kvc_cache.{layer}.{name}"], held - 2)
    found = session.decode(np.array([[END]]))[0]
    wanted = wanted_of(model, prompt, 1)[held]
    assert np.abs(found - wanted).max() > NOTICED * wanted.std()


def test_places_that_did_not_see_later_ones_would_be_noticed(model, session):
    prompt = tokens_of("<boi> 5 6 <boi> 7")
    given = [picture(i) for i in range(2)]
    embeddings = picturing_on(session, given).embeddings
    for i in range(len(prompt)):
        found = session.prefill_embeds(embeddings([prompt], [i], [1]))[0].copy()
    wanted = wanted_of(model, prompt, 2)[-1]
    assert np.abs(found - wanted).max() > NOTICED * wanted.std()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_answers_are_those_of_transformers(model, session, prompt):
    images = [picture(i) for i in range(PROMPTS[prompt])]
    given = processor()(images=images or None, text=prompt, return_tensors="pt")
    limit = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": [95]}
    with torch.no_grad():
        wanted = model.generate(**given, **limit)[0, given["input_ids"].shape[1] :]
    run = generate(session, prompt, images=images, max_tokens=STEPS, stop_tokens=95)
    assert list(run) == [token for token in wanted.tolist() if token != 95]


def test_each_row_of_a_batch_is_what_it_is_alone(bundle, session):
    """Texts and pictures of rows begin and end at places of their own."""
    prompts = [*PROMPTS, "<boi>"]
    counts = [*PROMPTS.values(), 1]
    images = [[picture(10 * i + j) for j in range(n)] for i, n in enumerate(counts)]
    limit = {"max_tokens": 9, "stop_tokens": 95}
    with load(bundle) as program, program.session(batch=ROWS) as rows:
        together = generate(rows, prompts, images=images, **limit)
        together.texts()
        answers = [list(one) for one in together.tokens]
    alone = []
    for prompt, given in zip(prompts, images, strict=True):
        session.reset()
        alone.append(list(generate(session, prompt, images=given, **limit)))
    assert answers == alone


@only(prompt=["<boi> 5 6 <boi> 7"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_beams_after_pictures_are_those_of_transformers(model, bundle, prompt):
    images = [picture(i) for i in range(PROMPTS[prompt])]
    given = processor()(images=images or None, text=prompt, return_tensors="pt")
    limit = {"max_new_tokens": 9, "num_beams": 3, "eos_token_id": [95]}
    with torch.no_grad():
        wanted = model.generate(**given, do_sample=False, **limit)
    wanted = wanted[0, given["input_ids"].shape[1] :].tolist()
    with load(bundle) as program, program.session(batch=3) as session:
        run = generate(session, prompt, images=images, **limit)
        assert list(run) == [token for token in wanted if token != 95]


def test_several_answers_see_the_pictures_of_one_prompt(bundle):
    prompt, drawn = "5 <boi> 6", {"temperature": 1.0, "seed": 3, "max_tokens": 6}
    with load(bundle) as program:
        with program.session(batch=3) as session:
            run = generate(session, prompt, images=[picture(0)], n=3, **drawn)
            texts = run.texts()
        with program.session(batch=3) as session:
            images = [[picture(0)]] * 3
            rows = generate(session, [prompt] * 3, images=images, **drawn)
            assert rows.texts() == texts
    assert len(set(texts)) > 1


def test_rows_wait_at_a_picture_for_those_whose_text_is_longer(bundle):
    prompts = [[5, *[TOKEN] * JOINED, 6], [7] * (CHUNK + 2), [*[TOKEN] * JOINED]]
    images = [[picture(0)], [], [picture(1)]]
    with load(bundle) as program, program.session(batch=3) as session:
        places = places_of(session)
        rows = [prepared(session, places, given) for given in images]
        planned = Picturing(session, places, rows).plan(prompts)
    assert [(feed.method, feed.counts) for feed in planned] == [
        ("prefill_embeds", (1, 4, 0)),
        ("prefill_embeds", (0, 3, 0)),
        ("prefill_picture", (4, 0, 4)),
        ("prefill_embeds", (1, 0, 0)),
    ]


def test_the_command_reads_pictures_of_several_prompts(bundle, tmp_path):
    files = []
    for i in range(3):
        picture(i).save(tmp_path / f"{i}.png")
        files += ["--image", str(tmp_path / f"{i}.png")]
    prompts = ["5 <boi> 6", "7 8", "<boi> 9 <boi>"]
    arguments = ["generate", str(bundle), *prompts, "--max-tokens", "5"]
    found = CliRunner().invoke(main, [*arguments, *files])
    assert found.exit_code == 0, found.stderr
    images = [[picture(0)], [], [picture(1), picture(2)]]
    with load(bundle) as program, program.session(batch=3) as session:
        texts = generate(session, prompts, images=images, max_tokens=5).texts()
    pairs = zip(prompts, texts, strict=True)
    shown = [f"> {prompt}\n{text}\n" for prompt, text in pairs]
    assert found.stdout == "\n".join(shown)
    found = CliRunner().invoke(main, [*arguments, *files[2:]])
    assert found.exit_code == 1
    assert "prompt: expected '<boi>' once, for the picture, got 2" in found.stderr


def test_the_command_reads_pictures(bundle, session, tmp_path):
    check_the_command(bundle, session, "3 4 <boi> 5 6 7 8 9 10 11", tmp_path)


def test_a_later_turn_brings_another_picture(bundle, session):
    first, then = "3 <boi> 4 5", "6 <boi> 7"
    limit = {"stop_tokens": 95}
    said = list(generate(session, first, images=[picture(0)], max_tokens=4, **limit))
    more = f"{said[-1]} {then}"
    turns = list(generate(session, more, images=[picture(1)], max_tokens=9, **limit))
    with load(bundle) as program, program.session() as other:
        text = " ".join([first, *map(str, said), then])
        images = [picture(0), picture(1)]
        whole = list(generate(other, text, images=images, max_tokens=9, **limit))
    assert len(turns) == 9
    assert turns == whole


@pytest.mark.parametrize(
    ("tokens", "images", "says"),
    [
        ([5, *[TOKEN] * (2 * JOINED), 6], 2, "got 8 times in a row"),
        ([TOKEN, 5, *[TOKEN] * (JOINED - 1), 6], 1, "got 1 times in a row"),
        ([5, 6], 1, "once, for the picture, got 0"),
        ([5, TOKEN, 6], 0, "none of the token"),
    ],
)
def test_a_picture_lies_in_a_prompt_as_the_model_reads_it(
    session, tokens, images, says
):
    given = [picture(i) for i in range(images)]
    with pytest.raises(BadSetting, match=says):
        generate(session, tokens, images=given)
    assert session.position == 0


def test_a_picture_past_the_capacity_is_refused_before_anything_runs(bundle):
    with load(bundle) as program, program.session(capacity=16) as session:
        with pytest.raises(PromptTooLong):
            generate(session, "<boi> 5 <boi> 6 7 8 9", images=[picture(0), picture(1)])
        assert session.position == 0


def test_a_method_of_pictures_of_another_size_is_refused(session, monkeypatch):
    metadata = dict(session.metadata)
    told = json.loads(metadata["picture_places"]) | {"positions": 3}
    metadata["picture_places"] = json.dumps(told)
    monkeypatch.setattr(Session, "metadata", metadata)
    with pytest.raises(BadSetting, match="the bundle"):
        generate(session, [5, TOKEN, 6], images=[picture(0)])


def test_no_operator_is_left_to_pytorch_and_no_mask_is_stored(bundle):
    with BundleFile.open(bundle) as file:
        program = file.program
    assert not any(method.left for method in describe_methods(program))
    assert {state.name for state in program.states} == {
        "kvc_position",
        *(f"kvc_cache.{i}.{n}" for i in (0, 1) for n in ("keys", "values")),
    }


def test_a_picture_longer_than_the_cache_is_refused(model):
    settings = {"cache": CacheConfig(16), "prefill_chunk": CHUNK}
    large = build(*_of_pictures(64))
    with pytest.raises(BadModelSetting, match="64 or more, which one picture takes"):
        export_hf(large, **settings)


def _of_pictures(places: int):
    kind, settings = MODELS["gemma3"]
    vision = settings["vision_config"] | {"image_size": 8 * PATCH}
    more = {"vision_config": vision, "mm_tokens_per_image": places}
    return kind, settings | more


@pytest.mark.exhaustive
def test_a_picture_may_be_longer_than_a_chunk_and_than_a_small_cache(tmp_path):
    large = build(*_of_pictures(64))
    settings = {"cache": CacheConfig(CAPACITY), "prefill_chunk": CHUNK}
    made = export_hf(large, recipe="cpu_fp32", **settings)
    made.save(tmp_path / "model.kvc")
    shown = np.random.default_rng(5).normal(size=(1, 3, 64, 64)).astype(np.float32)
    tokens = np.array([[5, *[TOKEN] * 64]])
    wanted = eager(large, tokens, shown)[-1]
    with load(tmp_path / "model.kvc") as program, program.session() as session:
        assert session.longest_call == 64
        assert session.state["kvc_cache.0.keys"].shape[2] == 6 + 64 - 1
        session.prefill(tokens[:, :1])
        found = session.prefill_picture(program.embed_image(shown)[None])[0]
        assert np.abs(found - wanted).max() < TOLERANCE * wanted.std()
        with program.session(capacity=20) as small:
            with pytest.raises(CacheOverflow):
                small.prefill_picture(program.embed_image(shown)[None])
            assert small.position == 0


SIZES = [(45, 33), (20, 61), (300, 7), (1, 1)]


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_transformers(folder, size):
    shown = picture(3, *size)
    preparation = preparation_of(read_pictures(folder))
    found = pixels_of(preparation, shown, (SIDE, SIDE))
    wanted = processor().image_processor(shown)["pixel_values"][0]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_pan_and_scan_is_refused(tmp_path):
    processor(do_pan_and_scan=True).image_processor.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="do_pan_and_scan"):
        read_pictures(tmp_path)


def test_an_empty_picture_is_refused(session):
    with pytest.raises(Exception, match="0 x 4 pixels"):
        generate(session, "5 <boi> 6", images=[Image.new("RGB", (0, 4))])
    assert session.position == 0
