"""What comes of files that a loader gets, and kvc's own loader; no rival is needed."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import loaders
from forked_batches import Limits
from loaders import LOADERS, Loader, digest_of, try_all
from resident_memory import LINUX

pytestmark = LINUX


def _run(path):
    """Do what a file says."""
    content = path.read_bytes()
    if content == b"refuse":
        raise ValueError(path)
    if content == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    while content == b"run on":
        pass
    return content


def test_each_file_has_an_answer_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(loaders, "LIMITS", Limits(seconds=0.2, nbytes=4 << 30))
    whole = tmp_path / "whole"
    whole.write_bytes(b"right")
    contents = [b"right", b"wrong", b"refuse", b"die", b"run on", b"right"]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    found = try_all(Loader(os.fspath, _run), whole, tmp_path, len(contents))
    assert found == ["same", "differs", "error", "ends the process", "runs on", "same"]


def test_a_whole_file_that_is_refused_ends_the_run(tmp_path):
    (tmp_path / "whole").write_bytes(b"refuse")
    with pytest.raises(SystemExit, match="the whole file: error: ValueError"):
        try_all(Loader(os.fspath, _run), tmp_path / "whole", tmp_path, 0)


def test_kvcs_loader_gives_the_layers_result_and_refuses_damage(tmp_path):
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    LOADERS["kvc"].make(whole)
    given = torch.tensor(loaders.INPUT)
    with torch.no_grad():
        expected = loaders._torch_model()(given)
    found = np.frombuffer(LOADERS["kvc"].run(whole), np.float32)
    assert np.allclose(found, expected.numpy())
    raw = bytearray(whole.read_bytes())
    raw[len(raw) // 2] ^= 1
    damaged.write_bytes(raw)
    assert digest_of(LOADERS["kvc"], damaged).startswith("error: ")
