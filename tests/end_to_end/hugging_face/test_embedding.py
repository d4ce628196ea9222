"""From texts and pictures to embeddings and labels: folder, bundle, command."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from daily import RARELY, only
from encoder_models import SIDE, build, say_pooling, write
from PIL import Image
from safetensors.torch import load_file, save_file
from small_tokenizers import word_piece
from tokenizers import Tokenizer, processors
from torch import nn
from transformers import ClapConfig, ClapModel, PreTrainedModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from kvc.compiler import CacheConfig, Dim, Method, compile_program, export_hf
from kvc.runtime import (
    Program,
    classify,
    classify_images,
    embed,
    embed_images,
    load,
    similarity,
)
from kvc.schema.container import AtomicFile
from kvc.schema.errors import (
    BadModelSetting,
    BadPicture,
    BadSetting,
    CannotWrite,
    CheckpointMismatch,
    FileProblem,
    TextTooLong,
    UnknownTask,
    UnsupportedModel,
)
from kvc.tools.cli import main

TEXTS = [
    "Once upon a time there was a small compiler.",
    "a",
    "It made a file of a model, and the file ran.",
    "time there was",
]
VOCABULARY = 250
ROOT = Path(__file__).parents[3]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
sys.modules["transformers"] = None
from kvc.tools.cli import (main)
main(sys.argv[1:])
"""


@cache  # trained anew, it would be another one
def tokenizer() -> Tokenizer:
    made = word_piece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return made


def save(path: Path, model: PreTrainedModel) -> Path:
    model.save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    return path


def eager_states(model: PreTrainedModel, text: str) -> np.ndarray:
    """Return the states of a text alone, float32 [seq, hidden]."""
    tokens = torch.tensor([tokenizer().encode(text).ids])
    with torch.no_grad():
        return model(input_ids=tokens).last_hidden_state[0].numpy()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return build("bert", vocab_size=VOCABULARY)


@pytest.fixture
def folder(model: PreTrainedModel, tmp_path: Path) -> Path:
    return save(tmp_path / "bert", model)


@pytest.fixture(scope="module")
def bundle(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save(tmp_path_factory.mktemp("bert"), model)
    path = folder / "bert.kvc"
    export_hf(folder, recipe="cpu_fp32").save(path)
    return path


@pytest.fixture
def program(bundle: Path):
    with load(bundle) as opened:
        yield opened


def test_texts_of_any_length_give_the_mean_of_their_tokens(program, model):
    found = embed(program, TEXTS)
    wanted = np.stack([eager_states(model, text).mean(0) for text in TEXTS])
    assert found.dtype == np.float32
    assert np.abs(found - wanted).max() < 1e-5
    assert json.loads(program.metadata["pooling"]) == {
        "ways": ["mean"],
        "normalized": False,
        "stated": False,
    }


def test_the_page_finds_the_nearest_text(bundle):
    page = (ROOT / "runtime_py/GENERATING.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (example,) = (block for block in blocks if "similarity" in block)
    defined = {}
    exec(example, defined)
    for text in TEXTS:
        assert defined["nearest"](bundle, text, TEXTS) == text


def test_many_texts_are_those_of_each_alone(program):
    texts = [text + " time" * (i % 7) for i, text in enumerate(TEXTS * 40)]
    found = embed(program, texts)
    alone = np.concatenate([embed(program, [text]) for text in texts[:9]])
    assert found.shape == (160, 64)
    assert np.abs(found[:9] - alone).max() < 1e-5


def test_a_folder_says_how_states_become_an_embedding(folder, model):
    modes = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
    say_pooling(folder, **modes)
    export_hf(folder, recipe="cpu_fp32").save(folder / "bert.kvc")
    with load(folder / "bert.kvc") as program:
        found = embed(program, TEXTS)
    states = [eager_states(model, text) for text in TEXTS]
    wanted = np.stack([np.concatenate([s[0], s.max(0)]) for s in states])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.abs(found - wanted).max() < 1e-5


def test_a_folder_says_which_prompt_and_how_many_tokens(folder, model):
    say_pooling(folder, pooling_mode_mean_tokens=True, normalize=False)
    write(folder, "sentence_bert_config.json", {"max_seq_length": 20})
    prompts = {"query": "time there ", "document": ""}
    settings = {"prompts": prompts, "default_prompt_name": "query"}
    write(folder, "config_sentence_transformers.json", settings)
    export_hf(folder).save(folder / "bert.kvc")
    with load(folder / "bert.kvc") as program:
        usual = embed(program, ["was"])
        assert np.array_equal(usual, embed(program, ["time there was"], prompt=""))
        assert not np.array_equal(usual, embed(program, ["was"], prompt="document"))
        with pytest.raises(BadSetting, match="document, query"):
            embed(program, ["was"], prompt="passage")
        with pytest.raises(TextTooLong, match="at most 20"):
            embed(program, ["was", "time " * 19])


@pytest.mark.parametrize("texts", [[], "a text", ["a", 3], None])
def test_what_is_no_text_is_refused(program, texts):
    with pytest.raises(BadSetting, match="texts"):
        embed(program, texts)


def test_a_text_past_the_longest_is_refused_before_anything_runs(program):
    with pytest.raises(TextTooLong, match=r"texts\[1\] has 102 tokens.*at most 64"):
        embed(program, ["time", "time " * 100])


def test_a_model_of_another_task_is_refused(program):
    with pytest.raises(
        BadSetting, match=r"classifies texts .*got one for --task embed"
    ):
        classify(program, TEXTS)
    with pytest.raises(
        BadSetting, match=r"embeds pictures .*got one that takes no pictures"
    ):
        embed_images(program, ["a.png"])


@RARELY
def test_labels_are_named_as_in_the_folder(tmp_path):
    labels = {0: "bad", 1: "good", 2: "odd"}
    model = build("bert", "classify", vocab_size=VOCABULARY, id2label=labels)
    folder = save(tmp_path / "bert", model)
    export_hf(folder).save(tmp_path / "bert.kvc")
    with load(tmp_path / "bert.kvc") as program:
        found = classify(program, TEXTS)
    for text, scored in zip(TEXTS, found, strict=True):
        tokens = torch.tensor([tokenizer().encode(text).ids])
        with torch.no_grad():
            wanted = model(input_ids=tokens).logits[0].softmax(0)
        assert [label.name for label in scored] == [
            labels[i] for i in wanted.argsort(descending=True).tolist()
        ]
        best = max(label.score for label in scored)
        assert best == pytest.approx(float(wanted.max()), abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "scored"),
    [
        ("multi_label_classification", lambda logits: 1 / (1 + np.exp(-logits))),
        ("regression", lambda logits: logits),
    ],
)
@only(kind=["multi_label_classification"])
def test_scores_are_made_as_the_configuration_says(tmp_path, kind, scored):
    model = build("bert", "classify", vocab_size=VOCABULARY, problem_type=kind)
    folder = save(tmp_path / "bert", model)
    export_hf(folder).save(tmp_path / "bert.kvc")
    tokens = torch.tensor([tokenizer().encode(TEXTS[0]).ids])
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[0].numpy()
    with load(tmp_path / "bert.kvc") as program:
        (found,) = classify(program, TEXTS[:1])
    wanted = sorted(scored(logits), reverse=True)
    assert [label.score for label in found] == pytest.approx(wanted, abs=1e-5)


@RARELY
def test_a_model_with_a_head_can_embed_by_the_states_below_it(tmp_path):
    whole = build("bert", "fill_mask", vocab_size=VOCABULARY)
    folder = save(tmp_path / "bert", whole)
    assert next(iter(export_hf(folder).program.methods)).name == "fill_mask"
    export_hf(folder, task="embed").save(tmp_path / "bert.kvc")
    with load(tmp_path / "bert.kvc") as program:
        found = embed(program, TEXTS[:1])
    wanted = eager_states(whole.bert, TEXTS[0]).mean(0)
    assert np.abs(found - wanted).max() < 1e-5


def test_weights_beside_those_of_a_model_without_a_head_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["extra.weight"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointMismatch, match=r"extra\.weight"):
        export_hf(folder)


def test_a_folder_that_names_no_task_asks_for_one(folder):
    config = json.loads((folder / "config.json").read_text())
    for named in (None, ["BertForNobody"]):
        write(folder, "config.json", config | {"architectures": named})
        with pytest.raises(UnknownTask, match=r"--task.*embed, classify"):
            export_hf(folder)
    write(folder, "config.json", config | {"model_type": "distilbert"})
    with pytest.raises(UnsupportedModel, match="no causal language model"):
        export_hf(folder, task="generate")


def test_a_task_that_there_is_not_and_one_that_a_model_has_not(folder, model):
    with pytest.raises(BadModelSetting, match="one of generate, embed"):
        export_hf(folder, task="translate")
    with pytest.raises(BadModelSetting, match="'embed', which a BertModel does"):
        export_hf(model, task="classify")


def run_without_torch(*arguments: str, given: str = "") -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True)


def test_the_command_line_embeds_without_torch(bundle, program, tmp_path):
    lines = tmp_path / "texts.txt"
    lines.write_text("\n".join(TEXTS[1:]) + "\n")
    run = run_without_torch("embed", str(bundle), TEXTS[0], "--file", str(lines))
    assert run.returncode == 0, run.stderr
    printed = [json.loads(line) for line in run.stdout.splitlines()]
    assert [one["text"] for one in printed] == TEXTS
    found = np.array([one["embedding"] for one in printed], np.float32)
    wanted = embed(program, TEXTS)
    assert np.abs(found - wanted).max() < 1e-6
    output = tmp_path / "found.npy"
    options = ["--file", "-", "-o", str(output), "--similarity"]
    run = run_without_torch("embed", str(bundle), *options, given="\n".join(TEXTS))
    assert run.returncode == 0, run.stderr
    assert np.abs(np.load(output) - wanted).max() < 1e-6
    alike = [json.loads(line)["similarity"] for line in run.stdout.splitlines()]
    assert np.abs(np.array(alike) - similarity(wanted, wanted)).max() < 1e-5
    assert np.diag(alike) == pytest.approx(1, abs=1e-6)


def test_an_empty_text_is_what_the_tokenizer_puts_around_it(program):
    found = embed(program, ["", "  ", "was"])
    alone = embed(program, [""])
    assert np.abs(found[:2] - alone).max() < 1e-6
    assert np.abs(found[2] - alone).max() > 1e-3


def test_each_line_of_a_file_has_its_row(bundle, program, tmp_path):
    path, output = tmp_path / "lines.txt", tmp_path / "rows.npy"
    path.write_bytes("\ufeffa\r\n\r\ntime\u2028there\x0c\n \nwas".encode())
    lines = ["a", "", "time\u2028there\x0c", " ", "was"]
    options = ["embed", str(bundle), "first", "--file", str(path)]
    run = CliRunner().invoke(main, options)
    assert [json.loads(line)["text"] for line in run.stdout.split("\n")[:-1]] == [
        "first",
        *lines,
    ]
    assert CliRunner().invoke(main, [*options, "-o", str(output)]).exit_code == 0
    wanted = embed(program, ["first", *lines])
    assert np.abs(np.load(output) - wanted).max() < 1e-6


def test_an_error_of_a_line_names_the_line(bundle, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("a\n\n" + "time " * 100 + "\n")
    run = CliRunner().invoke(main, ["embed", str(bundle), "a", "--file", str(path)])
    assert run.exit_code == 1
    assert "lines.txt: line 3: has 102 tokens" in run.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give a TEXT"),
        (["--file", "nowhere.txt"], "nowhere.txt"),
        (["--image", "a.png"], "embeds pictures"),
        (["a", "--prompt", "query"], "a prompt that the bundle has: none"),
        (["--image", "a.png", "--prompt", "query"], "there are none"),
        (["a", "-o", "no/folder/a.npy"], "cannot write"),
    ],
)
def test_the_command_line_says_what_is_wrong(bundle, arguments, text):
    run = CliRunner().invoke(main, ["embed", str(bundle), *arguments])
    assert run.exit_code != 0
    assert text in run.output
    assert "Traceback" not in run.output


def test_a_model_of_texts_and_sounds_is_refused():
    text = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 32}
    small = {"num_hidden_layers": 1, "num_attention_heads": 2}
    sound = {
        "depths": [1, 1], "num_attention_heads": [2, 2], "hidden_size": 32,
        "patch_embeds_hidden_size": 16, "spec_size": 32, "num_mel_bins": 8,
    }  # fmt: skip
    config = ClapConfig(text_config={**text, **small}, audio_config=sound)
    with pytest.raises(UnsupportedModel, match="fails when it is run on 7"):
        export_hf(ClapModel(config), task="embed")


class Summing(nn.Module):
    """Takes texts of any length and no lengths of rows; embeds pictures otherwise."""

    def embed(self, tokens):
        return tokens.float().sum(1, keepdim=True)

    def embed_image(self, pixels):
        return pixels.mean((2, 3))


@pytest.fixture
def stranger(tmp_path: Path):
    """Save a bundle of the module above, which says that it embeds."""
    texts = {
        "method": "embed",
        "padding": 0,
        "prompts": {},
        "prompt": "",
        "lower": False,
    }
    pictures = {
        "method": "embed_image", "size": None, "shortest": None, "resampling": 3,
        "crop": [8, 8], "factor": 1.0, "mean": None, "deviation": None,
    }  # fmt: skip

    def save_(
        seq: Dim | None = None, tokenizer: str | None = "bytes", **wrong: object
    ) -> Path:
        dynamic = {} if seq is None else {"tokens": {1: seq}}
        tokens, pixels = torch.zeros(1, 5, dtype=torch.int64), torch.zeros(1, 3, 8, 8)
        methods = (
            Method("embed", args=(tokens,), dynamic=dynamic),
            Method("embed_image", args=(pixels,)),
        )
        told = {"task": "embed", "tokenizer": tokenizer, "texts": texts}
        metadata = {**told, "pictures": pictures | wrong}
        path = tmp_path / "stranger.kvc"
        compile_program(Summing(), methods, "fp32", metadata).save(path)
        return path

    return save_


@pytest.mark.parametrize(
    ("tokenizer", "text", "found"),
    [("bytes", "12345", 49 + 50 + 51 + 52 + 53), (None, "1 2 3 4 5", 15)],
)
def test_a_bundle_without_tokenizer_json_takes_bytes_or_numbers(
    stranger, tokenizer, text, found
):
    with load(stranger(tokenizer=tokenizer)) as program:
        assert embed(program, [text]).item() == found


@pytest.mark.parametrize("number", ["-1", "9" * 30])
def test_a_number_that_is_no_token_is_refused(stranger, number):
    with (
        load(stranger(tokenizer=None)) as program,
        pytest.raises(BadSetting, match=r"texts\[0\]: expected tokens from 0"),
    ):
        embed(program, [f"1 2 3 4 {number}"])


def test_padding_that_a_method_cannot_know_of_is_refused(stranger):
    with (
        load(stranger(Dim("seq", 1, 9))) as program,
        pytest.raises(BadSetting, match="a method that takes row lengths"),
    ):
        embed(program, ["one", "three"])


def test_a_size_that_the_model_does_not_take_is_refused_before_it_is_made(stranger):
    most = (1 << 14) - 1  # more memory than machines have
    with (
        load(stranger(crop=[most, most])) as program,
        pytest.raises(BadSetting, match=f"{most} x {most} of every picture"),
    ):
        embed_images(program, [picture(8, 8)])


def test_vectors_of_two_lengths_are_no_embeddings(stranger, tmp_path):
    picture(8, 8).save(tmp_path / "a.png")
    given = ["embed", str(stranger()), "three", "--image", str(tmp_path / "a.png")]
    run = CliRunner().invoke(main, given)
    assert run.exit_code == 1
    assert "vectors of texts and pictures of one length, got [1, 3]" in run.output


def test_embeddings_are_written_whole_or_not_at_all(bundle, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise CannotWrite(path="found.npy", reason="no space")

    output = tmp_path / "found.npy"
    output.write_bytes(b"before")
    monkeypatch.setattr(AtomicFile, "commit", full)
    run = CliRunner().invoke(main, ["embed", str(bundle), "a", "-o", str(output)])
    assert run.exit_code == 1
    assert output.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [output]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both towers and a processor; its bundle lies in it."""
    folder = tmp_path_factory.mktemp("clip")
    build("clip").save_pretrained(folder)
    processor().save_pretrained(folder)
    export_hf(folder, recipe="cpu_fp32").save(folder / "clip.kvc")
    return folder


def processor() -> CLIPImageProcessorPil:
    crop = {"height": SIDE, "width": SIDE}
    return CLIPImageProcessorPil(size={"shortest_edge": SIDE + 5}, crop_size=crop)


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    values = np.random.default_rng(width).integers(0, 256, (height, width, 3))
    return Image.fromarray(values.astype(np.uint8)).convert(mode)


@pytest.mark.parametrize(
    ("size", "mode"), [((91, 60), "RGB"), ((20, 333), "RGB"), ((37, 37), "L")]
)
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_pictures_of_any_size_are_prepared_as_the_model_does(
    clip, tmp_path, size, mode, suffix
):
    path = tmp_path / f"a.{suffix}"
    picture(*size, mode).save(path)
    given = processor()(Image.open(path), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        wanted = build("clip").get_image_features(pixel_values=given).pooler_output
    with load(clip / "clip.kvc") as program:
        found = embed_images(program, [path, picture(50, 40)])
    assert np.abs(found[0] - wanted[0].numpy()).max() < 1e-4
    assert np.abs(found[1] - wanted[0].numpy()).max() > 1e-2


def test_the_command_line_embeds_a_picture_without_torch(clip, tmp_path):
    path = tmp_path / "a.png"
    picture(60, 50).save(path)
    run = run_without_torch("embed", str(clip / "clip.kvc"), "--image", str(path))
    assert run.returncode == 0, run.stderr
    printed = json.loads(run.stdout)
    with load(clip / "clip.kvc") as program:
        wanted = embed_images(program, [path])[0]
    assert printed["image"] == str(path)
    assert np.abs(np.array(printed["embedding"]) - wanted).max() < 1e-6


def test_what_is_no_picture_is_refused(clip, tmp_path):
    with load(clip / "clip.kvc") as program:
        (tmp_path / "a.png").write_bytes(b"no picture")
        with pytest.raises(BadPicture, match="not a picture"):
            embed_images(program, [tmp_path / "a.png"])
        picture(60, 50).save(tmp_path / "b.png")
        whole = (tmp_path / "b.png").read_bytes()
        (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(BadPicture, match="not a complete picture"):
            embed_images(program, [tmp_path / "b.png"])
        (tmp_path / "c.png").write_bytes(b"")
        with pytest.raises(BadPicture, match="it is empty"):
            embed_images(program, [tmp_path / "c.png"])
        with pytest.raises(FileProblem, match="nowhere"):
            embed_images(program, [tmp_path / "nowhere.png"])
        with pytest.raises(FileProblem, match="without a name"):
            embed_images(program, [""])
        with pytest.raises(BadSetting, match=r"pictures\[0\]"):
            embed_images(program, [3])
        with pytest.raises(BadSetting, match="a list of pictures"):
            embed_images(program, [])


def test_a_picture_of_pillow_that_cannot_be_used_is_refused(clip, tmp_path):
    picture(60, 50).save(tmp_path / "a.png")
    closed = Image.open(tmp_path / "a.png")
    closed.close()
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    with load(clip / "clip.kvc") as program, Image.open(tmp_path / "a.png") as cut:
        for wrong in (cut, closed, SimpleNamespace(convert=None)):
            with pytest.raises(BadPicture, match="the picture: it cannot be used"):
                embed_images(program, [wrong])
        with pytest.raises(BadPicture, match="it has 0 x 5 pixels"):
            embed_images(program, [Image.new("RGB", (0, 5))])
        with pytest.raises(BadPicture, match="9000 x 9000 pixels"):
            embed_images(program, [Image.new("1", (9000, 9000))])


def test_a_picture_that_unpacks_to_too_much_is_refused(clip, tmp_path):
    Image.new("1", (9000, 9000)).save(tmp_path / "huge.png")
    assert (tmp_path / "huge.png").stat().st_size < 20_000
    Image.new("RGB", (1, 60_000)).save(tmp_path / "narrow.png")
    with load(clip / "clip.kvc") as program:
        with pytest.raises(BadPicture, match="9000 x 9000 pixels"):
            embed_images(program, [tmp_path / "huge.png"])
        Image.new("1", (20_000, 20_000)).save(tmp_path / "vast.png")
        with pytest.raises(BadPicture, match="far more pixels"):
            embed_images(program, [tmp_path / "vast.png"])
        with pytest.raises(BadPicture, match="once it is resized"):
            embed_images(program, [tmp_path / "narrow.png"])


def test_pictures_are_classified(tmp_path):
    model = build("vit", "classify", id2label={0: "cat", 1: "dog"})
    model.save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    export_hf(tmp_path).save(tmp_path / "vit.kvc")
    given = processor()(picture(70, 40), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        wanted = model(pixel_values=given).logits[0].softmax(0)
    with load(tmp_path / "vit.kvc") as program:
        (found,) = classify_images(program, [picture(70, 40)])
    assert found[0].name == ("cat", "dog")[int(wanted.argmax())]
    assert found[0].score == pytest.approx(float(wanted.max()), abs=1e-4)


def test_a_bundle_without_a_processor_says_so(tmp_path):
    export_hf(build("vit")).save(tmp_path / "vit.kvc")
    with (
        load(tmp_path / "vit.kvc") as program,
        pytest.raises(BadSetting, match="preprocessor_config"),
    ):
        embed_images(program, [picture(70, 40)])


@RARELY
def test_rows_are_as_many_as_was_asked_for(folder):
    export_hf(folder, cache=CacheConfig(batch=3)).save(folder / "bert.kvc")
    with load(folder / "bert.kvc") as program:
        assert isinstance(program, Program)
        assert embed(program, TEXTS).shape == (4, 64)


def test_what_is_no_number_is_null_on_the_command_line(stranger, tmp_path):
    Image.new("RGB", (8, 8), "white").save(tmp_path / "white.png")
    arguments = ["--image", str(tmp_path / "white.png")]
    bundle = str(stranger(factor=1e36))
    run = CliRunner().invoke(main, ["embed", bundle, *arguments])
    assert json.loads(run.stdout)["embedding"] == [None] * 3, run.output
    assert "null" in run.stdout
