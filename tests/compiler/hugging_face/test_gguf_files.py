"""GGUF files as models."""

import json
import tempfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hf_folders import eager, random_tokens, word_tokenizer

pytest.importorskip("gguf")
from gguf_files import save_gguf, save_other

from kvc.compiler.checkpoints.filled import attached
from kvc.compiler.checkpoints.gguf_file import GgufCheckpoint
from kvc.compiler.hugging_face import export_hf
from kvc.compiler.hugging_face.gguf_model import open_gguf
from kvc.compiler.weights.weight_reader import read
from kvc.runtime import load
from kvc.runtime.tokenizers import tokenizer_of
from kvc.schema.checkpoints.gguf_header import read_gguf_header
from kvc.schema.checkpoints.problems import Problems
from kvc.schema.errors import (
    BadCheckpoint,
    CheckpointError,
    StoredScalesNotFinite,
    UnsupportedModel,
)
from kvc.tools.checkpoints import check_checkpoint
from kvc.tools.cli import main

KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K",
         "Q6_K", "Q3_K"]  # fmt: skip
EXACT = {"Q8_0", "Q4_0", "Q4_1", "Q5_0"}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_file(tmp_path, kind):
    expected = save_gguf(tmp_path / "m.gguf", kind).state_dict()
    opened = open_gguf(tmp_path / "m.gguf")
    named = dict(opened.model.named_parameters())
    for name, weight in expected.items():
        source = attached(named[name])
        found = read(source)
        torch.testing.assert_close(found, weight, rtol=1e-6, atol=1e-7)
        layout = getattr(source.stored, "layout", None)
        if layout is None:
            assert weight.dim() < 2 or kind in ("F32", "F16", "BF16")
            continue
        stored = source.stored
        rows = [stored.stored_rows(0, 8), stored.stored_rows(8, len(weight))]
        used = torch.cat([each.widened() for each in rows])
        assert (layout.loss == "") == (kind in EXACT)
        error = (used - weight).view(-1, layout.block).abs().amax(1)
        if kind == "Q4_K":
            scales = torch.cat([each.scales for each in rows]).float().reshape(-1)
            minimums = torch.cat([each.minimums for each in rows]).float().reshape(-1)
            most = (15 * scales + minimums.abs()) * 2**-11
        else:
            step = weight.view(-1, layout.block).abs().amax(1) / 127
            most = step * (0 if kind in EXACT else 0.5001)
        assert bool((error <= most * 1.001 + 1e-7).all())


def test_a_file_is_compiled_with_its_tokenizer_and_template(tmp_path):
    model = save_gguf(tmp_path / "tiny.gguf", "Q8_0")
    path = tmp_path / "tiny.kvc"
    given = ["compile", str(tmp_path / "tiny.gguf"), "-o", str(path)]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    assert "9 matrices of Q8_0 as they are" in done.output
    program, tokens = load(path), random_tokens(20)
    session = program.session()
    found = np.asarray(session.prefill(tokens))
    expected = eager(model, tokens)[:, -1]
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    settings = json.loads(program.metadata["generation_config"])
    assert settings["eos_token_id"] == 2
    tokenizer = tokenizer_of(session)
    assert tokenizer.encode("abA") == [63, 3]


def test_floats_of_a_file_give_the_logits_of_its_model(tmp_path):
    model, tokens = save_gguf(tmp_path / "m.gguf", "Q6_K"), random_tokens(20)
    export_hf(tmp_path, recipe="cpu_fp32").save(tmp_path / "m.kvc")  # by its folder
    found = np.asarray(load(tmp_path / "m.kvc").session().prefill(tokens))
    expected = eager(model, tokens)[:, -1]
    most = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * most)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of a whole file."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    save_gguf(path, "Q4_0")
    return path.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b[:-5000], "it is cut short: it has .* and tensor .* ends at byte"),
        (lambda b: b[:100], "it is cut short: 100 bytes, and its header is longer"),
        (lambda b: b"GGML" + b[4:], "it does not begin with GGUF"),
        (lambda b: b[:4] + b"\x01\0\0\0" + b[8:], "it has version 1"),
        (lambda b: b[:4] + b"\0\0\0\x03" + b[8:], "another byte order"),
        (lambda b: b[:8] + b"\xff" * 8 + b[16:], "it has 1844.* tensors, which cannot"),
        (
            lambda b: b.replace(b"blk.0.attn_k.weight", b"blk.0.attn_q.weight"),
            "tensor blk.0.attn_q.weight: it is described twice",
        ),
        (
            lambda b: b[: len(b) // 2],
            "tensor .* ends at byte .*, and .* more end after",
        ),
        (lambda b: b"", "it is cut short"),
    ],
)
def test_damaged_files_are_told_before_torch_is_imported(tmp_path, whole, change, said):
    path = tmp_path / "m.gguf"
    path.write_bytes(change(whole))
    with pytest.raises(BadCheckpoint, match=said):
        open_gguf(path)
    with pytest.raises(BadCheckpoint, match=said):
        check_checkpoint(str(path))


def test_any_bytes_are_refused_or_read(whole):
    random = np.random.default_rng(0)
    head = bytearray(whole[:3000])
    for _ in range(300):
        changed = bytearray(head)
        for place in random.integers(4, len(head), 3):
            changed[place] = random.integers(0, 256)
        with tempfile.TemporaryFile() as file:
            file.write(changed)
            file.flush()
            with suppress(Problems):
                read_gguf_header(file.fileno(), len(whole))


def test_scales_that_are_no_numbers_are_told_and_nothing_is_written(tmp_path, whole):
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    entry = GgufCheckpoint(path).tensors["blk.0.ffn_up.weight"].entry
    damaged = bytearray(whole)
    damaged[entry.begin : entry.begin + 2] = np.float16("nan").tobytes()
    path.write_bytes(damaged)
    bundle = export_hf(path, recipe="cpu_q8")
    with pytest.raises(StoredScalesNotFinite, match=r"up_proj.weight is damaged: 1"):
        bundle.save(tmp_path / "m.kvc")
    assert not (tmp_path / "m.kvc").exists()


def test_architectures_that_transformers_does_not_read_are_named(tmp_path, whole):
    path = tmp_path / "m.gguf"
    path.write_bytes(whole.replace(b"llama", b"lemma"))
    with pytest.raises(UnsupportedModel, match="no GGUF files of architecture 'lemma'"):
        open_gguf(path)


def test_a_folder_of_several_models_asks_for_one(tmp_path, whole):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"several models, a.gguf, b.gguf; give"):
        open_gguf(tmp_path)


def test_parts_of_a_split_model_are_read_together(tmp_path, whole):
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002.gguf is missing"):
        open_gguf(path)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(whole)
    with pytest.raises(BadCheckpoint, match=r"'blk.0.attn_q.weight' is in two files"):
        open_gguf(path)
    model = save_gguf(tmp_path / "s.gguf", "Q8_0", parts=2)
    opened = open_gguf(tmp_path / "s-00002-of-00002.gguf").model
    for name, weight in opened.named_parameters():
        torch.testing.assert_close(read(attached(weight)), model.state_dict()[name])


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_scaled_frequencies_are_those_of_llama_3(tmp_path, factor):
    scaled = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": factor,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model = save_gguf(tmp_path / "m.gguf", "F32", rope=scaled)
    opened = open_gguf(tmp_path / "m.gguf").model
    found = opened.config.rope_parameters
    assert {key: found[key] for key in scaled} == scaled
    expected = model.model.rotary_emb.inv_freq
    torch.testing.assert_close(opened.model.rotary_emb.inv_freq, expected)


def test_other_scalings_of_frequencies_are_refused(tmp_path):
    factors = np.linspace(1, 7, 32, dtype=np.float32)
    save_gguf(tmp_path / "m.gguf", "F32", factors=factors)
    with pytest.raises(UnsupportedModel, match="otherwise than Llama"):
        open_gguf(tmp_path / "m.gguf")


def test_positions_are_scaled_as_the_file_says(tmp_path):
    path = tmp_path / "m.gguf"
    save_gguf(path, "F32", metadata={"rope.scaling.type": "linear", "factor": 4.0})
    found = open_gguf(path).model.config.rope_parameters
    assert (found["rope_type"], found["factor"]) == ("linear", 4.0)
    save_gguf(path, "F32", metadata={"rope.scaling.type": "yarn", "factor": 4.0})
    with pytest.raises(UnsupportedModel, match="scales positions by 'yarn'"):
        open_gguf(path)


def test_the_tokenizer_is_the_files_own(tmp_path):
    save_gguf(tmp_path / "m.gguf", "F32")
    (tmp_path / "tokenizer.json").write_text(word_tokenizer())
    found = json.loads(open_gguf(tmp_path / "m.gguf").files["tokenizer.json"])
    assert found["model"]["vocab"]["ab"] == 63


def test_types_that_cannot_be_widened_are_named(tmp_path, whole):
    path = tmp_path / "m.gguf"
    entry = b"blk.0.ffn_up.weight" + (2).to_bytes(4, "little")
    place = whole.index(entry) + len(entry) + 16
    path.write_bytes(whole[:place] + (9).to_bytes(4, "little") + whole[place + 4 :])
    with pytest.raises(BadCheckpoint, match=r"ffn_up.weight: .*Q8_1|ends at byte"):
        open_gguf(path)


def test_tensors_that_lie_over_others_are_named(tmp_path, whole):
    path = tmp_path / "m.gguf"
    entry = b"blk.0.attn_q.weight" + (2).to_bytes(4, "little")
    place = whole.index(entry) + len(entry) + 16
    q8_0 = (8).to_bytes(4, "little")
    path.write_bytes(whole[:place] + q8_0 + whole[place + 4 :])
    with pytest.raises(BadCheckpoint, match=r"attn_q.weight: Q8_0: .* within blk.0."):
        check_checkpoint(str(path))


def test_tensors_that_leave_bytes_unread_are_named(tmp_path, whole):
    path = tmp_path / "m.gguf"
    entry = b"blk.0.attn_q.weight" + (2).to_bytes(4, "little")
    place = whole.index(entry) + len(entry) + 16
    iq1_s = (19).to_bytes(4, "little")
    made = bytearray(whole)
    made[place : place + 4] = iq1_s
    path.write_bytes(made)
    with pytest.raises(
        BadCheckpoint, match=r"attn_q.weight: .*(bytes before|blocks of)"
    ):
        check_checkpoint(str(path))


def test_files_that_are_not_there_are_not_called_damaged(tmp_path):
    with pytest.raises(CheckpointError, match="No such file") as caught:
        check_checkpoint(str(tmp_path / "m.gguf"))
    assert not isinstance(caught.value, BadCheckpoint)


def test_sizes_of_zero_are_refused(tmp_path, whole):
    path = tmp_path / "m.gguf"
    entry = b"blk.0.ffn_up.weight" + (2).to_bytes(4, "little")
    place = whole.index(entry) + len(entry)
    sizes = (0).to_bytes(8, "little") + (1 << 58).to_bytes(8, "little")
    path.write_bytes(whole[:place] + sizes + whole[place + 16 :])
    with pytest.raises(BadCheckpoint, match=r"ffn_up.weight: its sizes are \["):
        open_gguf(path)


def test_norms_of_gemma_and_experts_of_qwen_are_converted(tmp_path):
    for kind in ("gemma2", "qwen2moe", "qwen3moe"):
        model = save_other(tmp_path / f"{kind}.gguf", kind)
        opened = open_gguf(tmp_path / f"{kind}.gguf").model
        for name, weight in opened.named_parameters():
            found = read(attached(weight))
            torch.testing.assert_close(found, model.state_dict()[name])
