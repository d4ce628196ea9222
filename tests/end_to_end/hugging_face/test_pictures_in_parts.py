"""Models that read a picture in parts, as many as its shape asks for (Idefics 3)."""

import json
from pathlib import Path

import encoder_models
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from seeing_models import MODELS, NOTICED, SIDE, TOKEN, TOLERANCE, WORDS, build, picture
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import Idefics3Processor, PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
)
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.reading.picture_places import read_places
from kvc.compiler.hugging_face.reading.picture_settings import read_pictures
from kvc.runtime import Session, generate, load
from kvc.runtime.embedding.parts import parts_preparation_of
from kvc.runtime.generation.image_prefill import Picturing
from kvc.runtime.generation.picture_places import places_of
from kvc.runtime.generation.preparing import prepared
from kvc.schema.errors import (
    BadModelFolder,
    BadPicture,
    BadSetting,
    PromptTooLong,
    UnsupportedModel,
)
from kvc.tools.cli import main

LONGEST = 2 * SIDE
CHUNK = 13
CAPACITY = 160
STEPS = 40
SPECIAL = {
    "<pad>": 0, "</s>": 2, "<end_of_utterance>": 83, "<row_1_col_1>": 84,
    "<row_1_col_2>": 85, "<row_2_col_1>": 86, "<row_2_col_2>": 87, "<global-img>": 88,
    "<fake_token_around_image>": 89, "<image>": TOKEN,
}  # fmt: skip
# Width and height of pictures, and the rows and columns that they are split into.
SHAPES = {(45, 33): "2x2", (90, 30): "1x2", (20, 61): "2x1", (3, 3): "2x2"}
PROMPTS = {
    "3 <image> 4": [(45, 33)],
    "<image> 5 6 <image> 7": [(90, 30), (20, 61)],
    "5 6 7": [],
}


def processor(**settings) -> Idefics3Processor:
    """What prepares texts and pictures, with four positions for each part."""
    words = {str(n): n for n in range(WORDS) if n not in SPECIAL.values()}
    made = Tokenizer(models.WordLevel(words | SPECIAL, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken(one, normalized=False) for one in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>"
    )
    sizes = {
        "size": {"longest_edge": LONGEST},
        "max_image_size": {"longest_edge": SIDE},
    }
    pictures = Idefics3ImageProcessorPil(**sizes | settings)
    return Idefics3Processor(pictures, tokenizer, image_seq_len=4)


@pytest.fixture(scope="module")
def model():
    kind, settings = MODELS["idefics3"]
    parts = ("text_config", "vision_config")
    fewer = {name: settings[name] | {"num_hidden_layers": 1} for name in parts}
    fewer["text_config"] |= {"max_position_embeddings": 256}
    return build(kind, settings | fewer)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("idefics3")
    model.save_pretrained(path)
    processor().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "idefics3.kvc"
    cache = CacheConfig(CAPACITY)
    export_hf(folder, recipe="cpu_fp32", cache=cache, prefill_chunk=CHUNK).save(path)
    return path


@pytest.fixture
def session(bundle):
    with load(bundle) as program, program.session() as opened:
        yield opened


def pictures_of(prompt: str) -> list[Image.Image]:
    return [picture(i, *size) for i, size in enumerate(PROMPTS[prompt])]


def picturing_on(session, images) -> Picturing:
    """Return what gives the embeddings of one prompt with pictures."""
    places = places_of(session)
    return Picturing(session, places, [prepared(session, places, images)])


def test_logits_are_those_of_the_model_after_chunks_and_40_steps(model, session):
    prompt = "<image> 5 6 <image> 7"
    images = pictures_of(prompt)
    given = processor()(images=[images], text=prompt, return_tensors="pt")
    more = torch.from_numpy(np.random.default_rng(7).integers(3, 80, (1, STEPS)))
    whole = torch.cat([given["input_ids"], more], dim=1)
    with torch.no_grad():
        logits = model(
            input_ids=whole, pixel_values=given["pixel_values"], use_cache=False
        ).logits[0].numpy()  # fmt: skip
    held, tokens = given["input_ids"].shape[1], whole[0].tolist()
    picturing = picturing_on(session, images)
    made, ends = [], [*range(CHUNK, held, CHUNK), held]
    pieces = list(zip([0, *ends], ends, strict=False))
    parts = [picturing.embeddings([tokens], [b], [e - b]) for b, e in pieces]
    fed = np.concatenate(parts, axis=1)
    wrong = fed.copy()
    places = [i for i, token in enumerate(tokens[:held]) if token == TOKEN]
    wrong[0, places[5]] = wrong[0, places[6]]
    wanted = logits[[*(end - 1 for end in ends), *range(held, held + STEPS)]]
    for embeddings in (fed, wrong):
        session.reset()
        found = [
            session.prefill_embeds(embeddings[:, begin:end])[0].copy()
            for begin, end in pieces
        ]
        steps = range(held, held + STEPS)
        found += [session.decode(whole[:, i : i + 1].numpy())[0].copy() for i in steps]
        made.append(np.abs(np.stack(found) - wanted).max() / logits.std())
    far, control = made
    assert far < TOLERANCE
    assert control > NOTICED


@pytest.mark.parametrize("prompt", PROMPTS)
def test_answers_are_those_of_transformers(model, session, prompt):
    images = pictures_of(prompt)
    given = processor()(
        images=[images] if images else None, text=prompt, return_tensors="pt"
    )
    given.pop("pixel_attention_mask", None)
    limit = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": [95]}
    with torch.no_grad():
        wanted = model.generate(**given, **limit)[0, given["input_ids"].shape[1] :]
    run = generate(session, prompt, images=images, max_tokens=STEPS, stop_tokens=95)
    assert list(run) == [token for token in wanted.tolist() if token != 95]


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("size", [*SHAPES, (700, 1), (1, 40), (64, 64), (65, 63)])
def test_parts_are_those_of_transformers(folder, tmp_path, session, size, splits):
    said = json.loads(session.metadata["pictures"])
    said["parts"]["splits"] = splits
    made = parts_preparation_of(said).parts(picture(3, *size), (SIDE, SIDE))
    prepare = processor(do_image_splitting=splits).image_processor
    wanted = prepare(picture(3, *size), return_row_col_info=True)
    np.testing.assert_array_equal(np.stack(made.pixels), wanted["pixel_values"][0])
    assert made.grid == f"{wanted['rows'][0][0]}x{wanted['cols'][0][0]}"
    if splits and size in SHAPES:
        assert made.grid == SHAPES[size]


def test_a_later_turn_brings_another_picture(bundle):
    first, then = picture(0, 45, 33), picture(1, 90, 30)
    limit = {"stop_tokens": 95}
    with load(bundle) as program:
        with program.session() as session:
            run = generate(
                session, "3 <image> 4", images=[first], max_tokens=4, **limit
            )
            said = list(run)
            more = [*run.pending, 6, TOKEN, 7]
            turns = list(
                generate(session, more, images=[then], max_tokens=STEPS, **limit)
            )
        with program.session() as session:
            text = " ".join(["3 <image> 4", *map(str, said), "6 <image> 7"])
            whole = list(
                generate(session, text, images=[first, then], max_tokens=STEPS, **limit)
            )
    assert len(turns) == STEPS
    assert turns == whole


@pytest.mark.parametrize(
    ("prompt", "count", "says"),
    [
        ("5 6", 1, "'<image>' once, for the picture, got 0"),
        ("5 <image>", 2, "2 times, once for each picture, got 1"),
        ("5 <image>", 0, "none of '<image>'"),
        ([5, TOKEN, TOKEN], 1, "once, for the picture, got 2"),
    ],
)
def test_a_prompt_has_a_place_for_each_picture(session, prompt, count, says):
    with pytest.raises(BadSetting, match=says):
        generate(session, prompt, images=[picture(0)] * count)
    assert session.position == 0


def test_too_many_pictures_are_refused_before_anything_runs(session):
    prompt = "<image> " * 6
    with pytest.raises(PromptTooLong):
        generate(session, prompt, images=[picture(i) for i in range(6)])
    assert session.position == 0


@pytest.mark.parametrize("size", [(0, 0), (1 << 14, 1 << 13)])
def test_a_picture_that_is_empty_or_too_large_is_refused(session, size):
    with pytest.raises(BadPicture, match="pixels"):
        generate(session, "<image>", images=[Image.new("RGB", size)])


@pytest.mark.parametrize(
    "damage",
    [
        {"parts": {"longest": None, "side": SIDE, "splits": True}},
        {"parts": {"longest": 1 << 20, "side": SIDE, "splits": True}},
        {"parts": {"longest": LONGEST, "side": SIDE * 2, "splits": True}},
        {"parts": {"longest": LONGEST * 2, "side": SIDE, "splits": True}},
        {"parts": []},
        {"parts": {"longest": LONGEST, "side": SIDE}},
    ],
)
def test_parts_that_cannot_be_are_refused(session, monkeypatch, damage):
    refused(session, monkeypatch, "pictures", damage)


@pytest.mark.parametrize(
    "grids", [[], {"2x2": ["a", "b"]}, {"2x2": ["<image>"] * 6}, {"2x2": "abcdef"}, {}]
)
def test_grids_that_cannot_be_are_refused(session, monkeypatch, grids):
    refused(session, monkeypatch, "picture_places", {"grids": grids})


def refused(session: Session, monkeypatch, name: str, damage: dict) -> None:
    """A bundle whose metadata is damaged is refused."""
    metadata = dict(session.metadata)
    metadata[name] = json.dumps(json.loads(metadata[name]) | damage)
    monkeypatch.setattr(Session, "metadata", metadata)
    with pytest.raises(BadSetting, match="the bundle"):
        generate(session, "5 <image> 7", images=[picture(0)])


def test_metadata_has_the_texts_around_the_parts_of_every_shape(session):
    places = json.loads(session.metadata["picture_places"])
    assert places["expansion"] is None
    assert sorted(places["grids"]) == ["1x2", "2x1", "2x2"]
    assert places["grids"]["1x2"] == [
        "<fake_token_around_image><row_1_col_1>",
        "<fake_token_around_image><row_1_col_2>",
        "\n\n<fake_token_around_image><global-img>",
        "<fake_token_around_image>",
    ]


def test_the_command_reads_pictures(bundle, tmp_path):
    picture(0).save(tmp_path / "a.png")
    given = ["generate", str(bundle), "5 <image> 6", "--max-tokens", "9"]
    found = CliRunner().invoke(main, [*given, "--image", str(tmp_path / "a.png")])
    assert found.exit_code == 0, found.stderr
    with load(bundle) as program, program.session() as session:
        run = generate(session, given[2], images=[picture(0)], max_tokens=9)
        assert found.stdout == "".join(run.text()) + "\n"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"do_resize": False}, "resized to nothing"),
        ({"size": {"height": 64, "width": 64}}, "not to one longer side"),
    ],
)
def test_a_processor_of_parts_without_a_bound_is_refused(
    folder, tmp_path, model, settings, says
):
    model.save_pretrained(tmp_path)
    processor(**settings).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=says):
        export_hf(tmp_path, cache=CacheConfig(CAPACITY))


def test_parts_of_a_model_without_prompts_are_refused(tmp_path):
    encoder_models.build("vit").save_pretrained(tmp_path)
    processor().image_processor.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="which only prompts have"):
        export_hf(tmp_path, task="embed")


def save_smolvlm(path: Path, **said: object) -> Path:
    """Save what a folder of SmolVLM says of its processor, which needs packages."""
    processor().save_pretrained(path)
    for name, changes in {
        "processor_config.json": {"processor_class": "SmolVLMProcessor", **said},
        "tokenizer_config.json": {"processor_class": "SmolVLMProcessor"},
    }.items():
        found = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps(found | changes))
    return path


def test_places_of_smolvlm_are_those_of_its_processor(tmp_path):
    save_smolvlm(tmp_path)
    places = read_places(tmp_path, read_pictures(tmp_path))
    assert {grid: one.text for grid, one in places.expansions.items()} == {
        f"{rows}x{columns}": get_image_prompt_string(
            rows, columns, 4, "<fake_token_around_image>", "<image>", "<global-img>"
        )
        for rows, columns in ((1, 2), (2, 1), (2, 2))
    }


@pytest.mark.parametrize("length", [0, "4", 1.5])
def test_numbers_of_places_that_cannot_be_are_refused(tmp_path, length):
    save_smolvlm(tmp_path, image_seq_len=length)
    with pytest.raises(BadModelFolder, match="image_seq_len"):
        read_places(tmp_path, read_pictures(tmp_path))


def test_tokens_of_smolvlm_with_other_names_are_refused(tmp_path):
    save_smolvlm(tmp_path)
    found = json.loads((tmp_path / "tokenizer_config.json").read_text())
    found |= {"extra_special_tokens": {"global_image_token": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(found))
    with pytest.raises(BadModelFolder, match="global_image_token"):
        read_places(tmp_path, read_pictures(tmp_path))
