import json
import random
import time
from pathlib import Path

import pytest
import torch
from checkpoint_files import entry, raw_file
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kvc.compiler.checkpoints.header import Problems
from kvc.compiler.checkpoints.tensor_file import TensorFile

GOOD = {"a": entry(0, 8, [2]), "b": entry(8, 16, [1, 2])}
BYTES = bytes(range(16))

WRONG = {
    "not_json": (b"{oops", "JSON is damaged"),
    "not_text": (b'{"\xff": 1}', "JSON is damaged"),
    "no_object": ([GOOD], "not an object"),
    "too_deep": (b"[" * 100_000, "JSON is damaged"),
    "twice": (b'{"a": 1, "a": 2}', "'a' stands in its JSON twice"),
    "no_description": ({"a": 1}, "tensor 'a': described by other than dtype"),
    "no_dtype": ({"a": {"shape": [], "data_offsets": [0, 4]}}, "described by other"),
    "dtype_number": ({"a": entry(0, 16, [4], dtype=7)}, "'a': its dtype is 7"),
    "shape_text": ({"a": entry(0, 16, "4")}, "its shape is '4'"),
    "shape_negative": ({"a": entry(0, 16, [-4])}, r"its shape is \[-4\]"),
    "shape_true": ({"a": entry(0, 4, [True])}, r"its shape is \[True\]"),
    "shape_fraction": ({"a": entry(0, 16, [4.0])}, r"its shape is \[4.0\]"),
    "shape_huge": ({"a": entry(0, 0, [1 << 62, 0])}, "its shape is"),
    "many_sizes": ({"a": entry(0, 0, [1] * 65)}, "its shape has 65 sizes, 64 are"),
    "product_huge": ({"a": entry(0, 0, [1 << 40] * 60)}, "too many elements"),
    "backwards": ({"a": entry(4, 0, [4])}, r"its bytes are \[4, 0\]"),
    "product": ({"a": entry(0, 16, [5])}, r"F32 \[5\] takes 20 bytes, it has 16"),
    "hole": ({"a": entry(0, 8, [2]), "b": entry(12, 16, [1])}, "'b' leaves a hole"),
    "overlap": ({"a": entry(0, 8, [2]), "b": entry(4, 16, [3])}, "'b' overlaps"),
    "after": ({"a": entry(0, 8, [2])}, "8 bytes after its tensors belong to none"),
    "cut_short": ({"a": entry(0, 20, [5])}, r"cut short: \d+ bytes.*not whole: 'a'"),
}


def test_a_header_tells_names_types_and_places(tmp_path: Path):
    file = TensorFile(str(raw_file(tmp_path / "f", GOOD, BYTES)))
    assert (file.entries["a"].shape, file.entries["b"].shape) == ((2,), (1, 2))
    assert file.entries["b"].dtype is torch.float32
    assert (file.entries["b"].begin, file.entries["b"].end) == (8, 16)


@pytest.mark.parametrize("case", WRONG)
def test_a_damaged_header_is_refused_with_its_reason(case: str, tmp_path: Path):
    header, reason = WRONG[case]
    path = raw_file(tmp_path / "f.safetensors", header, BYTES)
    with pytest.raises(Problems, match=reason):
        TensorFile(str(path))
    if case not in (
        "shape_huge",
        "many_sizes",
    ):  # the library cannot make a tensor of it either
        with pytest.raises(SafetensorError):
            safe_open(path, "pt")


def test_names_that_all_stand_twice_are_found_in_no_time(tmp_path: Path):
    names = ",".join(f'"t{number}":1' for number in range(20_000))
    path = raw_file(tmp_path / "f", f"{{{names},{names}}}".encode(), b"")
    begin = time.process_time()
    with pytest.raises(Problems) as caught:
        TensorFile(str(path))
    assert len(caught.value.reasons) == 20_000
    assert time.process_time() - begin < 2


def test_all_wrong_tensors_are_told(tmp_path: Path):
    header = {"a": entry(0, 8, [3]), "b": 1, "c": entry(8, 16, [2])}
    with pytest.raises(Problems) as caught:
        TensorFile(str(raw_file(tmp_path / "f", header, BYTES)))
    assert [reason[:11] for reason in caught.value.reasons] == [
        "tensor 'a':",
        "tensor 'b':",
    ]


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_a_file_without_a_length_is_refused(content: bytes, tmp_path: Path):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(Problems, match="a header needs 8"):
        TensorFile(str(tmp_path / "f"))


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path):
    (tmp_path / "f").write_bytes((1000).to_bytes(8, "little") + b"{}")
    with pytest.raises(Problems, match="cut short: 10 bytes, its header ends at 1008"):
        TensorFile(str(tmp_path / "f"))


def test_a_header_of_gigabytes_is_not_read(tmp_path: Path):
    (tmp_path / "f").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(Problems, match=r"no .safetensors file, or damage"):
        TensorFile(str(tmp_path / "f"))


def test_what_lies_in_the_place_of_a_file_is_told(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid 1")
    with pytest.raises(Problems, match="a Git LFS pointer: run `git lfs pull`"):
        TensorFile(str(tmp_path / "f"))


def test_a_dtype_that_torch_does_not_have_is_read_as_unknown(tmp_path: Path):
    header = {"a": entry(0, 16, [32], dtype="F4")}
    file = TensorFile(str(raw_file(tmp_path / "f", header, BYTES)))
    assert file.entries["a"].dtype is None


def test_a_file_with_metadata_and_no_tensor_is_whole(tmp_path: Path):
    file = TensorFile(str(raw_file(tmp_path / "f", {"__metadata__": {}}, b"")))
    assert file.entries == {}


def test_what_the_library_refuses_is_refused(tmp_path: Path):
    """One byte of a real header changed, many times: never more lenient than it.

    But for dtypes that it does not know either: a tensor of these is never read.
    """
    path = tmp_path / "f.safetensors"
    save_file({"one": torch.ones(3, 5), "two": torch.ones(2, dtype=torch.bool)}, path)
    whole, seeded = path.read_bytes(), random.Random(0)
    end = 8 + int.from_bytes(whole[:8], "little")
    outcomes = set()
    for _ in range(400):
        changed = bytearray(whole)
        changed[seeded.randrange(end)] = seeded.choice(b'0123456789,:[]{}" FIaU\xff')
        path.write_bytes(changed)
        outcome = we_accept(path), the_library_accepts(path)
        outcomes.add(outcome)
        assert outcome != (True, False), bytes(changed[8:end])
    assert {(True, True), (False, False)} <= outcomes


def we_accept(path: Path) -> bool:
    try:
        entries = TensorFile(str(path)).entries.values()
    except Problems:
        return False
    return all(entry.dtype is not None for entry in entries)


def the_library_accepts(path: Path) -> bool:
    try:
        safe_open(path, "pt")
    except SafetensorError:
        return False
    return True


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580])
def test_a_header_may_be_as_long_as_a_pickle_begins(tmp_path: Path, length):
    text = json.dumps(GOOD).encode().ljust(length)
    path = raw_file(tmp_path / "a.safetensors", text, BYTES)
    assert path.read_bytes()[0] == 0x80
    assert list(TensorFile(str(path)).entries) == ["a", "b"]


def test_of_many_tensors_that_are_cut_off_the_first_are_named(tmp_path: Path):
    header = {f"t{i}": entry(8 * i, 8 * i + 8, [2]) for i in range(40)}
    with pytest.raises(Problems, match="30 of its 40 tensors are not whole") as caught:
        TensorFile(str(raw_file(tmp_path / "f", header, bytes(80))))
    assert "'t10'" in str(caught.value)
    assert "and 18 more" in str(caught.value)
    assert "'t39'" not in str(caught.value)
