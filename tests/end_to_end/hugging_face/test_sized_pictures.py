"""Models whose pictures have sizes of their own, and whose positions have axes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import RARELY
from PIL import Image
from seeing_models import (
    NOTICED,
    SIZED,
    TOKEN,
    TOLERANCE,
    check_the_command,
    picture,
)
from sized_pictures import (
    CAPACITY,
    CHUNK,
    MERGE,
    PROMPT,
    ROWS,
    compare,
    model,
    processor,
    write_bundle,
    write_folder,
)
from transformers.image_utils import load_image

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.reading.picture_settings import read_pictures
from kvc.runtime import Conversation, Session, generate, load
from kvc.runtime.embedding.patches import patches_preparation_of
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.schema.container import BundleFile
from kvc.schema.errors import (
    BadModelFolder,
    BadPicture,
    BadSetting,
    PromptTooLong,
    UnsupportedModel,
)
from kvc.tools.reports.methods import describe_methods

STEPS = 40
HALF = 0.01  # how far float16 caches may be, in standard deviations of the logits
# Width and height, and rows and columns of groups that become of them.
SIZES = {(45, 33): "4x6", (20, 61): "8x2", (90, 30): "3x9", (3, 3): "2x2"}
PROMPTS = {
    "3 4 <begin> <image> <end> 5 6": [(45, 33)],
    PROMPT: [(20, 61), (3, 3), (90, 30)],
    "5 6 7": [],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("sized"))


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory) -> Path:
    return write_bundle(folder, tmp_path_factory.mktemp("bundle") / "model.kvc")


@pytest.fixture
def session(bundle):
    with load(bundle) as program, program.session() as opened:
        yield opened


def pictures_of(prompt: str) -> list:
    return [picture(i, *size) for i, size in enumerate(PROMPTS[prompt])]


def test_logits_are_those_of_the_model_after_chunks_and_40_steps(bundle):
    found = compare(bundle, model())
    assert max(found.prefill, found.decode) < TOLERANCE
    assert found.control > NOTICED


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SIZED)
def test_logits_of_every_architecture_are_those_of_the_model(name, tmp_path):
    folder = write_folder(tmp_path / "folder", name, layers=2)
    path = write_bundle(folder, tmp_path / "model.kvc", rows=1)
    found = compare(path, model(name, layers=2))
    assert max(found.prefill, found.decode) < TOLERANCE
    assert found.control > NOTICED
    assert found.left == 0


@pytest.mark.parametrize("dtype", ["float16", pytest.param("int8", marks=RARELY)])
def test_what_follows_tokens_stays_whole_beside_caches_of_another_dtype(
    tmp_path, dtype
):
    folder = write_folder(tmp_path / "folder")
    path, cache = tmp_path / "model.kvc", CacheConfig(CAPACITY, dtype=dtype)
    export_hf(folder, recipe="cpu_fp32", cache=cache, prefill_chunk=CHUNK).save(path)
    with load(path) as program, program.session() as session:
        list(generate(session, PROMPT, images=pictures_of(PROMPT), max_tokens=1))
        keys, after = session.state["kvc_cache.0.keys"], session.state["kvc_after"]
        assert keys.dtype == dtype
        # Rows and columns are 8x2, 2x2 and 3x9, with a token after each of two.
        ends = np.cumsum([16, 1, 4, 1, 27, 1]) - 1
        assert after[0, 0, ends, 0].tolist() == [8, 9, 11, 12, 21, 22]


@RARELY
def test_float16_caches_are_as_near_as_they_can_be(folder, tmp_path):
    path, cache = tmp_path / "model.kvc", CacheConfig(CAPACITY, dtype="float16")
    export_hf(folder, recipe="cpu_fp32", cache=cache, prefill_chunk=CHUNK).save(path)
    found = compare(path, model())
    assert max(found.prefill, found.decode) < HALF < found.control


@pytest.mark.parametrize("prompt", PROMPTS)
def test_answers_are_those_of_transformers(session, prompt):
    images = pictures_of(prompt)
    given = processor()(images=images or None, text=prompt, return_tensors="pt")
    limit = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": [95]}
    with torch.no_grad():
        wanted = model().generate(**given, **limit)[0, given["input_ids"].shape[1] :]
    run = generate(session, prompt, images=images, max_tokens=STEPS, stop_tokens=95)
    assert list(run) == [token for token in wanted.tolist() if token != 95]


@pytest.mark.parametrize("size", SIZES)
def test_patches_are_those_of_transformers(folder, size):
    shown = picture(3, *size)
    found = patches_preparation_of(read_pictures(folder)).patches(shown, 99)
    assert found.grid == SIZES[size]
    wanted = processor().image_processor(shown)
    (patches,) = found.pixels
    assert patches.reshape(-1, patches.shape[-1]).shape == wanted["pixel_values"].shape
    np.testing.assert_allclose(
        patches.reshape(-1, patches.shape[-1]), wanted["pixel_values"], atol=1e-6
    )
    rows, columns = map(int, found.grid.split("x"))
    assert wanted["image_grid_thw"].tolist() == [[1, rows * MERGE, columns * MERGE]]


def see_through(mode: str) -> Image.Image:
    """Return a picture whose left is more transparent than its right."""
    made = picture(3).convert("RGBA")
    made.putalpha(Image.linear_gradient("L").rotate(90).resize(made.size))
    if mode != "P":
        return made.convert(mode)
    told = picture(3).convert("P", palette=Image.Palette.ADAPTIVE)
    told.info["transparency"] = int(np.asarray(told)[0, 0])
    return told


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_as_transformers_has_it(folder, tmp_path, mode):
    preparation = patches_preparation_of(read_pictures(folder))
    shown, file = see_through(mode), tmp_path / "file.png"
    shown.save(file)
    pairs = [(shown, shown), (file, load_image(str(file)))]
    made = [preparation.patches(ours, 99).pixels[0] for ours, _ in pairs]
    for (_, theirs), patches in zip(pairs, made, strict=True):
        wanted = processor().image_processor(theirs)["pixel_values"]
        np.testing.assert_allclose(patches.reshape(wanted.shape), wanted, atol=1e-6)
    differ = np.abs(made[0] - made[1]).max() > 1  # an alpha channel is left out
    assert differ == (mode != "P")


def test_each_row_of_a_batch_is_what_it_is_alone(bundle, session):
    limit = {"max_tokens": 9, "stop_tokens": 95}
    images = [pictures_of(prompt) for prompt in PROMPTS]
    with load(bundle) as program, program.session(batch=ROWS) as rows:
        together = generate(rows, list(PROMPTS), images=images, **limit)
        together.texts()
    alone = []
    for prompt, given in zip(PROMPTS, images, strict=True):
        session.reset()
        alone.append(tuple(generate(session, prompt, images=given, **limit)))
    assert [tuple(one) for one in together.tokens] == alone


def test_a_chat_shows_pictures_in_a_later_turn(bundle):
    limit = {"max_tokens": 5, "stop_tokens": [95]}
    with load(bundle) as program:
        template = chat_template_of(program)
        talk = Conversation(program.session(), tokenizer_of(program), template, **limit)
        shown = [picture(0, 45, 33), picture(1, 20, 61)]
        "".join(talk.say("5", shown[:1]))
        "".join(talk.say("6", shown[1:]))
        found = list(talk.answer.tokens)
        text = template.render(talk.messages[:-1])
    given = processor()(images=shown, text=text, return_tensors="pt")
    limit = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": [95]}
    with torch.no_grad():
        wanted = model().generate(**given, **limit)[0, given["input_ids"].shape[1] :]
    assert found == [token for token in wanted.tolist() if token != 95]


def test_the_command_reads_pictures(bundle, session, tmp_path):
    check_the_command(bundle, session, "3 <image> 4", tmp_path)


def test_nothing_is_left_to_pytorch(bundle):
    with BundleFile.open(bundle) as file:
        assert not any(method.left for method in describe_methods(file.program))


@pytest.mark.parametrize(
    ("prompt", "count", "says"),
    [
        ("5 6", 1, "'<image>' once, for the picture, got 0"),
        ("5 <image> <image>", 1, "once, for the picture, got 2"),
        ([5, *[TOKEN] * 5], 1, "once, for the picture, got 5"),
        ([5, *[TOKEN] * 48, 6], 2, "of each picture side by side, .* got 48 at 1"),
        ([5, *[TOKEN] * 20, 6, *[TOKEN] * 4], 1, "side by side, .* got 20 at 1"),
    ],
)
def test_a_prompt_has_a_place_for_each_picture(session, prompt, count, says):
    with pytest.raises(BadSetting, match=says):
        generate(session, prompt, images=[picture(0)] * count)
    assert session.position == 0


def test_pictures_past_the_capacity_are_refused_before_anything_runs(bundle):
    with load(bundle) as program, program.session(capacity=30) as session:
        with pytest.raises(PromptTooLong):
            generate(session, "<image> 5 <image>", images=[picture(0), picture(1)])
        assert session.position == 0


@pytest.mark.parametrize("size", [(201, 1), (1, 400), (0, 4)])
def test_a_picture_that_is_too_long_is_refused(session, size):
    shown = picture(0).resize(size) if min(size) else picture(0).crop((0, 0, *size))
    with pytest.raises(BadPicture):
        generate(session, "<image> 5", images=[shown])


def test_more_groups_than_the_bundle_takes_are_refused(folder):
    preparation = patches_preparation_of(read_pictures(folder))
    with pytest.raises(BadPicture, match="4 x 6 groups of patches, and the bundle"):
        preparation.patches(picture(0, 45, 33), 23)


@pytest.mark.parametrize(
    "damage",
    [
        {"pictures": {"patches": {"least": 4}}},
        {
            "pictures": {
                "patches": {"least": 0, "most": 9, "side": 4, "merge": 2, "frames": 2}
            }
        },
        {"picture_places": {"sized": {"merge": 0, "window": 2}}},
        {"picture_places": {"sized": {"merge": 3, "window": 2}}},
        {"picture_places": {"sized": 5}},
    ],
)
def test_metadata_that_cannot_be_is_refused(session, damage, monkeypatch):
    metadata = dict(session.metadata)
    for name, change in damage.items():
        metadata[name] = json.dumps(json.loads(metadata[name]) | change)
    monkeypatch.setattr(Session, "metadata", metadata)
    with pytest.raises(BadSetting, match="the bundle"):
        generate(session, "5 <image> 7", images=[picture(0)])


def change_processor(folder: Path, change: dict) -> None:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    "change",
    [
        {"patch_size": 0},
        {"patch_size": 1025},
        {"size": {"shortest_edge": 0, "longest_edge": 64}},
        {"size": {"shortest_edge": 64, "longest_edge": (1 << 26) + 1}},
    ],
)
def test_a_processor_without_patches_is_refused(tmp_path, change):
    write_folder(tmp_path)
    change_processor(tmp_path, change)
    with pytest.raises(BadModelFolder, match="no patches can be made"):
        read_pictures(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"patch_size": 2}, "patches of side 2, merge 2, frames 2, and it reads those"),
        ({"merge_size": 1}, "merge 1"),
        ({"temporal_patch_size": 1}, "frames 1"),
    ],
)
def test_other_patches_than_the_model_reads_are_refused(tmp_path, change, says):
    write_folder(tmp_path)
    change_processor(tmp_path, change)
    with pytest.raises(UnsupportedModel, match=says):
        export_hf(tmp_path, recipe="cpu_fp32", cache=CacheConfig(CAPACITY))


def test_settings_of_pixels_have_their_older_names_too(tmp_path):
    write_folder(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    described = json.loads(path.read_text())
    del described["size"]
    change = {"min_pixels": 5 * 64, "max_pixels": 7 * 64}
    path.write_text(json.dumps(described | change))
    made = patches_preparation_of(read_pictures(tmp_path))
    assert (made.least, made.most) == (5 * 64, 7 * 64)
