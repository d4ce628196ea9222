"""Encoders of pictures with a decoder: the text of a picture is transformers'."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from seeing_models import picture
from seq2seq_models import (
    CAPACITY,
    SEQ2SEQ,
    SIDE,
    TOLERANCE,
    build,
    inputs_of,
    measure,
)
from small_tokenizers import unigram
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrOCRProcessor
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from kvc.compiler import export_hf
from kvc.runtime import Program, generate, load
from kvc.schema.container import verify_bundle
from kvc.schema.errors import (
    BadModelSetting,
    BadSetting,
    FileProblem,
    NotEncoded,
    UnsupportedModel,
)
from kvc.schema.graph import AccessMode
from kvc.tools.cli import main
from kvc.tools.reports.methods import describe_methods

WORDS = 420
PLACES = (SIDE // 8) ** 2 + 1  # of a picture, with the one that stands for all of it
SETTINGS = [
    {},
    {"repetition_penalty": 1.7},
    {"forced_bos_token_id": 7, "repetition_penalty": 1.7},
    {"suppress_tokens": list(range(40, 70)), "repetition_penalty": 1.7},
]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    _, settings = SEQ2SEQ["trocr"]
    return build(
        "trocr",
        encoder=settings["encoder"] | {"num_hidden_layers": 1},
        decoder=settings["decoder"] | {"decoder_layers": 1, "vocab_size": WORDS},
    )


@pytest.fixture(scope="module")
def processor() -> TrOCRProcessor:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=unigram(), eos_token="</s>")
    sides = {"height": SIDE, "width": SIDE}
    return TrOCRProcessor(ViTImageProcessorPil(size=sides), tokenizer)


@pytest.fixture(scope="module")
def folder(model, processor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trocr")
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    path = folder / "trocr.kvc"
    options = ["--recipe", "cpu_fp32", "--max-length", str(CAPACITY), "-o", str(path)]
    made = CliRunner().invoke(main, ["compile", str(folder), *options, "-q"])
    assert made.exit_code == 0, made.output
    return path


@pytest.fixture(scope="module")
def program(bundle: Path) -> Iterator[Program]:
    with load(bundle) as opened:
        yield opened


def test_logits_are_those_of_the_model(model, session):
    found = measure(model, session, inputs_of(model))
    assert found.far < TOLERANCE
    assert found.noticed


@pytest.mark.parametrize("settings", SETTINGS)
def test_text_is_what_transformers_generates(model, processor, session, settings):
    for seed in range(2):
        image = picture(seed)
        pixels = processor.image_processor(image, return_tensors="pt").pixel_values
        whole = model.generate(pixels, do_sample=False, max_new_tokens=20, **settings)
        run = generate(session, images=[image], max_tokens=20, **settings)
        tokens = list(run)
        ended = run.pending if run.reason == "stop" else ()
        assert [2, *tokens, *ended] == whole[0].tolist()


def test_a_decoder_begins_with_what_it_is_given(model, processor, session):
    image, start = picture(3), [2, 5, 8]
    pixels = processor.image_processor(image, return_tensors="pt").pixel_values
    begun = {"decoder_input_ids": torch.tensor([start]), "max_new_tokens": 8}
    whole = model.generate(pixels, do_sample=False, **begun)
    run = generate(session, images=[image], decoder_prompt=start, max_tokens=8)
    assert [*start, *run] == whole[0].tolist()


def test_the_command_reads_a_picture(model, processor, bundle, tmp_path):
    image = picture(4)
    image.save(tmp_path / "a.png")
    given = ["generate", str(bundle), "--image", str(tmp_path / "a.png")]
    run = CliRunner().invoke(main, [*given, "--max-tokens", "12"])
    assert run.exit_code == 0, run.output
    pixels = processor.image_processor(image, return_tensors="pt").pixel_values
    whole = model.generate(pixels, do_sample=False, max_new_tokens=12)[0].tolist()
    text = processor.tokenizer.decode(whole[1:], skip_special_tokens=True)
    assert run.stdout.strip() == text.strip()
    assert text, "tokens were made"


def test_the_command_needs_a_prompt_or_a_picture(bundle):
    run = CliRunner().invoke(main, ["generate", str(bundle)])
    assert run.exit_code == 2
    assert "Missing argument 'PROMPT...'" in run.stderr


def test_a_backend_runs_all_of_it_and_no_cache_is_copied(program, bundle):
    assert all(
        one.left == {} for one in describe_methods(verify_bundle(bundle).program)
    )
    for method in program.methods.values():
        written = [access for update in method.updates for access in update.accesses]
        assert sum(one.mode is AccessMode.SLOTS for one in written) == 2
        assert not any(update.copies for update in method.updates)


def test_the_cross_cache_is_written_by_encode_alone(session):
    session.encode(np.ones((1, 3, SIDE, SIDE), np.float32))
    cross = [name for name in session.state if name.startswith("kvc_cross")]
    before = [np.array(session.state[name]) for name in cross]
    assert [one.shape[2] for one in before] == [PLACES] * 2
    assert session.methods["encode"].input_names == ("pixels",)
    session.prefill(np.array([[2, 5, 8]]))
    session.decode(np.array([[9]]))
    for name, values in zip(cross, before, strict=True):
        np.testing.assert_array_equal(session.state[name], values)


def test_a_decoder_without_a_picture_is_refused(session):
    with pytest.raises(NotEncoded):
        session.prefill(np.array([[2]]))


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"prompt": "a", "images": [picture(0)]}, BadSetting, "prompt: expected none"),
        ({"images": [picture(0)] * 2}, BadSetting, "one picture, since the encoder"),
        ({"images": []}, BadSetting, "images=, --image"),
        ({"prompt": "a"}, BadSetting, "its encoder reads no text"),
        ({"images": [5]}, BadSetting, "a path, or a picture"),
        ({"images": ["no.png"]}, FileProblem, r"no\.png"),
        (
            {"prompt": [[2], [3]], "images": [picture(0)]},
            BadSetting,
            "prompt: expected none",
        ),
    ],
)
def test_what_an_encoder_of_pictures_does_not_take_is_refused(
    session, given, kind, says
):
    with pytest.raises(kind, match=says):
        generate(session, **given)
    assert session.position == 0


def test_an_encoder_of_pictures_cannot_be_compiled_without_them(model):
    with pytest.raises(BadModelSetting, match="takes pictures, and nothing else"):
        export_hf(model, pictures=False)


_SWIN = {
    "model_type": "swin", "image_size": SIDE, "patch_size": 4, "embed_dim": 24,
    "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
}  # fmt: skip
_RESNET = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16],
    "depths": [1, 1], "hidden_size": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("encoder", "says"), [(_SWIN, "a mask of its own"), (_RESNET, "has no image_size")]
)
def test_an_encoder_that_kvc_cannot_run_is_refused(encoder, says):
    with pytest.raises(UnsupportedModel, match=says):
        export_hf(build("vit and bart", encoder=encoder))
