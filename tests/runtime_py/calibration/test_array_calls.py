"""Files of arrays, of anybody: what is no file of arrays is `BadSamples`."""

import io
import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kvc.runtime.calibration import Samples, array_calls
from kvc.schema.errors import BadSamples

NUMBERS = np.random.default_rng(0).standard_normal(300).astype(np.float32)


def archive(save=np.savez_compressed) -> bytes:
    raw = io.BytesIO()
    save(raw, x=NUMBERS)
    return raw.getvalue()


def single() -> bytes:
    raw = io.BytesIO()
    np.save(raw, NUMBERS)
    return raw.getvalue()


def encrypted() -> bytes:
    """Say of the array that it needs a password."""
    raw = bytearray(archive())
    raw[raw.rfind(b"PK\x01\x02") + 8] |= 1
    raw[6] |= 1
    return bytes(raw)


def of_text() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as made:
        made.writestr("x.txt", b"hello")
    return raw.getvalue()


def header(text: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def tensors(told: object) -> bytes:
    raw = json.dumps(told).encode()
    return len(raw).to_bytes(8, "little") + raw


def tensor(shape: list[float]) -> bytes:
    return tensors({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}})


FORM = b"{'descr': '<f4', 'fortran_order': False, 'shape': "


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("a.safetensors", tensors([]), "names no tensors"),
        ("a.safetensors", tensors({"x": [1]}), "damaged"),
        ("a.safetensors", tensor([float("inf")]), "infinity to integer"),
        ("a.safetensors", tensor([0, 2**70]), "damaged"),
        ("a.npz", of_text(), "'x.txt' is not an array"),
        ("a.npz", encrypted(), "encrypted"),
        ("a.npz", archive()[:-30], "damaged"),
        ("a.npy", header(FORM + b"((("), "damaged"),
        ("a.npy", header(FORM + b"(99999999999999999999,)}"), "damaged"),
    ],
)
def test_files_that_hold_no_arrays_are_refused(tmp_path, name, raw, words):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(BadSamples, match=words):
        Samples(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "raw"),
    [("a.npz", archive()), ("b.npz", archive(np.savez)), ("a.npy", single())],
)
@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required")
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, name: str, raw: bytes):
    dice, refused = random.Random(0), 0
    for _ in range(200):
        damaged = bytearray(raw)
        for _ in range(3):
            damaged[dice.randrange(len(raw))] = dice.randrange(256)
        (tmp_path / name).write_bytes(damaged)
        try:
            Samples(tmp_path / name)
        except BadSamples:
            refused += 1
    assert refused


def test_an_archive_that_unpacks_to_too_much_is_refused_before(tmp_path, monkeypatch):
    monkeypatch.setattr(array_calls, "MOST_NBYTES", 1000)
    (tmp_path / "a.npz").write_bytes(archive())
    with pytest.raises(BadSamples, match="unpacks to 1328 bytes, more than 1000"):
        Samples(tmp_path / "a.npz")
