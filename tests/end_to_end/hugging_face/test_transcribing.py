"""A speech model from its folder: the tokens and times of transformers' `generate`."""

import re
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from daily import every
from hf_models import rescale
from seq2seq_models import TOLERANCE, measure
from spoken_sounds import RATE, sound
from transformers import (
    PreTrainedModel,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

import kvc.runtime
from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import Program, load
from kvc.runtime.speech import Transcription, spectrum_of, transcribe
from kvc.runtime.tokenizers import Ids
from kvc.schema.errors import BadModelFolder, BadModelSetting, BadSetting, InputMismatch
from kvc.tools.cli import main

# Tokens: text below 80, the end, the start, languages, tasks, no moments, moments.
END, START, NONE, VOCAB = 80, 81, 99, 160
EXTRACTOR = WhisperFeatureExtractor(feature_size=8, chunk_length=1)
WORDS = {
    "lang_to_id": {"<|en|>": 82, "<|de|>": 83},
    "task_to_id": {"transcribe": 84, "translate": 85},
    "no_timestamps_token_id": NONE,
    "max_initial_timestamp_index": 20,
    "is_multilingual": True,
    "suppress_tokens": [5, 6, 7],
    "begin_suppress_tokens": [9, END],
    "max_length": 60,
    "eos_token_id": END,
    "pad_token_id": END,
    "decoder_start_token_id": START,
}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    layers = {f"{part}_layers": 1 for part in ("encoder", "decoder")}
    heads = {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
    widths = {f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")}
    config = WhisperConfig(
        vocab_size=VOCAB, d_model=32, num_mel_bins=8, max_source_positions=50,
        max_target_positions=64, pad_token_id=END, bos_token_id=END, eos_token_id=END,
        decoder_start_token_id=START, suppress_tokens=None, begin_suppress_tokens=None,
        **layers, **heads, **widths,
    )  # fmt: skip
    made = WhisperForConditionalGeneration._from_config(
        config, attn_implementation="eager"
    )
    rescale(made, seed=0)
    for name, value in WORDS.items():
        setattr(made.generation_config, name, value)
    return made.eval()


@pytest.fixture(scope="module")
def folder(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whisper")
    model.save_pretrained(path)
    EXTRACTOR.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def program(folder: Path) -> Iterator[Program]:
    export_hf(folder, recipe="cpu_fp32").save(folder / "whisper.kvc")
    with load(folder / "whisper.kvc") as opened:
        yield opened


def test_logits_are_those_of_the_model(model, session):
    shape = (2, 1, 8, 100)
    features = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = measure(model, session, list(features))
    assert found.far < TOLERANCE
    assert found.noticed


@every(2, "seconds", "language", "task")
@pytest.mark.parametrize("seconds", [0.3, 2.7])
@pytest.mark.parametrize(
    ("language", "task"),
    [("en", None), ("de", "translate"), (None, None), (None, "translate")],
)
def test_tokens_and_times_are_those_of_transformers(
    model, session, seconds, language, task
):
    samples, is_long = sound(seconds), seconds > 1
    whole = {"truncation": False, "padding": "longest"} if is_long else {}
    given = EXTRACTOR(samples, sampling_rate=RATE, return_tensors="pt", **whole)
    for timestamps in (True,) if is_long else (False, True):
        settings = {"max_new_tokens": 30, "repetition_penalty": 1.5}
        made = model.generate(
            given.input_features, return_timestamps=timestamps, language=language,
            task=task, do_sample=False, return_segments=True, **settings,
        )  # fmt: skip
        run = transcribe(
            session, samples, language=language, task=task, tokenizer=Ids(),
            timestamps=timestamps or None, **settings,
        )  # fmt: skip
        expected = [
            (float(s["start"]), float(s["end"]), s["tokens"].tolist())
            for s in made["segments"][0]
        ]
        found = [(s.start, s.end, list(s.tokens)) for s in run.segments]
        assert len(found) >= (3 if is_long else 1)
        for one, other in zip(found, expected, strict=True):
            assert one[2] == other[2]
            assert one[:2] == pytest.approx(other[:2])
        assert language in (None, run.language)
        assert run.language in ("en", "de")


def test_text_has_no_moments(session):
    run = transcribe(session, sound(0.9), timestamps=True, tokenizer=Ids())
    assert run.text
    words = [int(word) for word in run.text.split()]
    said = [token for segment in run.segments for token in segment.tokens]
    assert words == [token for token in said if token <= NONE]
    assert len(words) < len(said)


def write(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def test_the_command_line_transcribes_files(program, folder, tmp_path):
    samples = sound(2.2)
    path = write(tmp_path / "a.wav", samples / np.abs(samples).max())
    options = ["--language", "en", "--max-tokens", "20"]
    bundle = str(folder / "whisper.kvc")
    run = CliRunner().invoke(main, ["transcribe", bundle, str(path), *options])
    assert run.exit_code == 0, run.output
    assert len(run.stdout.split()) > 3
    assert "2.2 s of sound" in run.stderr
    assert "language en" in run.stderr
    timed = CliRunner().invoke(
        main, ["transcribe", bundle, str(path), *options, "--timestamps"]
    )
    times = [line.split()[:2] for line in timed.stdout.splitlines()]
    assert len(times) > 1
    assert all(float(start) <= float(end) for start, end in times)


def test_the_runtimes_page_writes_down_a_file(program, tmp_path):
    page = (Path(kvc.runtime.__file__).parent / "GENERATING.md").read_text()
    *_, example = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(example, names)
    made = names["write_down"](program, write(tmp_path / "a.wav", sound(0.4)))
    assert made.language == "en"
    assert all(part.start <= part.end for part in made.segments)
    assert made.text


def test_the_command_line_refuses_a_sound_of_another_rate(program, folder, tmp_path):
    path = write(tmp_path / "a.wav", sound(0.1), rate=8000)
    run = CliRunner().invoke(
        main, ["transcribe", str(folder / "whisper.kvc"), str(path)]
    )
    assert run.exit_code == 1
    assert "8000 samples a second" in run.stderr


@pytest.mark.parametrize(
    ("samples", "settings", "name"),
    [
        (sound(0.1), {"language": "fr"}, "language"),
        (sound(0.1), {"task": "sing"}, "task"),
        (sound(1.5), {"timestamps": False}, "timestamps"),
        (np.zeros(0, np.float32), {}, "samples"),
        (np.zeros((2, 9), np.float32), {}, "samples"),
        (np.zeros(9, np.int16), {}, "samples"),
        (np.full(9, np.nan, np.float32), {}, "samples"),
    ],
)
def test_what_cannot_be_heard_is_refused(session, samples, settings, name):
    with pytest.raises(BadSetting) as raised:
        transcribe(session, samples, tokenizer=Ids(), **settings)
    assert raised.value.name == name
    assert session.position.tolist() == [0]


def test_features_of_another_size_leave_the_session_as_it_was(session):
    session.encode(np.ones((1, 8, 100), np.float32))
    session.prefill(np.array([[START]]))
    for shape in ((1, 8, 99), (1, 9, 100)):
        with pytest.raises(InputMismatch):
            session.encode(np.ones(shape, np.float32))
    assert session.position.tolist() == [1]


def test_a_model_says_what_its_encoder_always_has(model):
    with pytest.raises(BadModelSetting, match="50, which the model's encoder always"):
        export_hf(model, cache=CacheConfig(encoder_length=40))


def test_a_spectrum_that_kvc_does_not_compute_is_refused(folder, tmp_path):
    for file in folder.iterdir():
        if file.suffix != ".kvc":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = EXTRACTOR.to_dict() | {"dither": 0.1}
    WhisperFeatureExtractor(**settings).save_pretrained(tmp_path)
    with pytest.raises(BadModelFolder, match=r"dither is 0\.1"):
        export_hf(tmp_path)


def test_a_bundle_says_how_its_model_hears(program):
    spectrum = spectrum_of(program.metadata)
    assert (spectrum.rate, spectrum.bins, spectrum.frames) == (RATE, 8, 100)
    assert Transcription((), None).text == ""
