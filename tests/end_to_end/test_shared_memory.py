"""Several programs over one data file: on disk and in memory once, as Linux counts it.

A target, its draft (the embedding, the first layer, norm and head of the target), the
embedding model of the same backbone, and the target for shorter texts.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import RARELY
from resident_memory import LINUX
from transformers import LlamaConfig, LlamaForCausalLM

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import generate, load
from kvc.schema.container import BundleFile, join_bundle

pytestmark = RARELY  # it compiles for long; tests/runtime_py/data has the parts
MB = 1_000_000
SCRIPT = """
import ctypes, gc, json, sys
import numpy as np
import torch
from kvc.runtime import load

def measured():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as lines:
        fields = {line.split()[0]: line.split()[1] for line in lines}
    return [int(fields[name]) * 1024 for name in ("Rss:", "Pss:")]

def use(program):
    if "embed" in program.methods:
        program.embed(np.arange(8)[None], np.array([8]))
        return
    with program.session() as session:
        session.prefill(np.arange(8)[None])
        session.decode(np.array([[3]]))

def steps(mode, paths):
    programs, before = [], measured()
    for path in paths:
        programs.append(load(path, mode))
        use(programs[-1])
        after, totals = measured(), programs[-1].residency().totals
        grown = [b - a for a, b in zip(before, after)]
        yield [*grown, totals.touched, totals.shared]
        before = after
    for program in programs:
        use(program)
        program.close()
    after = measured()
    yield [a - b for a, b in zip(before, after)]

list(steps("map", sys.argv[1:]))  # what torch takes at its first calls
found = {mode: list(steps(mode, sys.argv[1:])) for mode in ("map", "read", "huge")}
print(json.dumps(found))
"""


def llama(layers: int) -> LlamaForCausalLM:
    """Return a model of random weights, 15 MB for each layer and 10 MB beside them."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2000, hidden_size=640, intermediate_size=1280,
        num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=4,
        max_position_embeddings=256, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    target, draft = llama(3), llama(1)
    draft.load_state_dict(
        {name: target.state_dict()[name] for name in draft.state_dict()}
    )
    first = export_hf(target, recipe="fp32", all_logits=True)
    data = first.save(folder / "target.kvc", data="external").data_path
    others = {
        "draft": export_hf(draft, recipe="fp32"),
        "embed": export_hf(target.model, task="embed", recipe="fp32"),
        "short": export_hf(target, recipe="fp32", cache=CacheConfig(max_length=64)),
    }
    for name, bundle in others.items():
        bundle.save(folder / f"{name}.kvc", data="external", reuse=[data])
    join_bundle(folder / "draft.kvc", folder / "alone.kvc")
    return folder


def test_the_others_add_almost_nothing_on_disk(folder: Path):
    (data,) = folder.glob("*.kvd")
    assert data.stat().st_size > 50 * MB
    for name, most in {"draft": 25 * MB, "embed": 48 * MB, "short": 50 * MB}.items():
        path = folder / f"{name}.kvc"
        assert path.stat().st_size < MB / 10
        with BundleFile.open(path) as file:
            assert sum(blob.nbytes for blob in file.program.blobs) > 0.95 * most
    assert (folder / "alone.kvc").stat().st_size > 23 * MB


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, list[list[int]]]:
    names = ("target", "draft", "embed", "short", "alone")
    paths = [str(folder / f"{name}.kvc") for name in names]
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@LINUX
@pytest.mark.parametrize("mode", ["map", "read", "huge"])
def test_the_others_add_almost_nothing_in_memory(measured, mode: str):
    (rss, pss, touched, shared), *others, closed = measured[mode]
    assert min(rss, pss, touched) > 44 * MB
    assert shared == 0
    assert len(others) == 4
    # Of 5 MB of embeddings, a map reads few pages.
    for found, least in zip(others, (19, 44, 44, 19), strict=True):
        rss, pss, touched, shared = found
        assert touched == shared > least * MB
        assert max(rss, pss) < 4 * MB
    assert min(closed) > 44 * MB


def test_the_draft_drafts_for_its_target(folder: Path):
    with (
        load(folder / "target.kvc") as target,
        load(folder / "draft.kvc") as draft,
        target.session() as plain,
        target.session() as checked,
        draft.session() as drafting,
    ):
        wanted = list(generate(plain, [1, 5, 7], max_tokens=12))
        tokens = generate(checked, [1, 5, 7], max_tokens=12, draft=drafting)
        assert list(tokens) == wanted
        assert draft.residency().totals.shared == draft.residency().totals.touched


def test_the_embedding_model_embeds_while_the_chat_is_open(folder: Path):
    tokens, lengths = np.array([[1, 5, 7]]), np.array([3])
    with load(folder / "embed.kvc") as alone:
        wanted = alone.embed(tokens, lengths)
    with load(folder / "target.kvc") as chat, chat.session() as session:
        session.prefill(tokens)
        with load(folder / "embed.kvc") as model:
            found = model.embed(tokens, lengths)
            assert np.array_equal(found, wanted)
            chat.release()
            assert np.array_equal(model.embed(tokens, lengths), wanted)
            session.decode(np.array([[3]]))
        assert chat.residency().totals.shared == 0
