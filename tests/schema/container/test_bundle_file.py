import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from named_bytes import read_blobs
from sample_programs import (
    SAMPLE_BLOBS,
    sample_program,
    tiny_program,
    write_sample,
    write_tiny,
)
from sealing import parts, reseal_header, seal

from kvc.schema.codec import encode
from kvc.schema.container import BundleFile, verify_bundle
from kvc.schema.errors import (
    BadMagic,
    BadProgram,
    BadStructure,
    DigestMismatch,
    FileChanged,
    FileProblem,
    FormatError,
    KvcError,
    LimitExceeded,
    Truncated,
    UnsupportedVersion,
)

EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


def test_a_bundle_gives_back_program_and_blobs(path):
    program = write_sample(path)
    with BundleFile.open(path) as bundle:
        assert bundle.program == program
        assert bundle.size == path.stat().st_size
        assert len(bundle.digest) == 64
    assert read_blobs(path) == list(SAMPLE_BLOBS)
    verify_bundle(path)


def test_equal_programs_make_equal_files(path, tmp_path):
    write_sample(path)
    write_sample(tmp_path / "other.kvc")
    assert path.read_bytes() == (tmp_path / "other.kvc").read_bytes()


def test_every_flipped_bit_is_found(path):
    write_tiny(path)
    raw = path.read_bytes()
    fd = os.open(path, os.O_RDWR)
    for position, byte in enumerate(raw):
        for bit in range(8):
            os.pwrite(fd, bytes([byte ^ 1 << bit]), position)
            with pytest.raises(FormatError):
                read_blobs(path)
        os.pwrite(fd, bytes([byte]), position)
    os.close(fd)
    assert read_blobs(path) == [SAMPLE_BLOBS[1]]


def test_every_truncation_is_found(path):
    write_tiny(path)
    raw = path.read_bytes()
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        with pytest.raises(FormatError):
            read_blobs(path)


def test_bytes_behind_the_end_are_found(path):
    write_tiny(path)
    raw = path.read_bytes()
    for extra in (1, 4, 64, 4096):
        path.write_bytes(raw + bytes(extra))
        with pytest.raises(Truncated, match="bytes"):
            read_blobs(path)


@pytest.mark.parametrize("offset", [8, 12, 16, 24, 32, 72, 80, 88])
@pytest.mark.parametrize("extreme", EXTREMES)
def test_an_extreme_in_the_header_is_found(path, offset, extreme):
    write_tiny(path)
    raw = bytearray(path.read_bytes())
    fmt, size = ("<I", 4) if offset < 16 else ("<Q", 8)
    before = raw[offset : offset + size]
    struct.pack_into(fmt, raw, offset, extreme & (2 ** (8 * size) - 1))
    if raw[offset : offset + size] == before:
        return
    path.write_bytes(reseal_header(bytes(raw)))
    with pytest.raises(FormatError):
        read_blobs(path)


def test_an_extreme_in_any_word_of_the_program_is_found_or_harmless(path):
    write_tiny(path)
    blobs, program = parts(path)
    for position in range(0, len(program) - 4, 4):
        for extreme in EXTREMES:
            fmt = "<I" if extreme < 2**32 else "<Q"
            if fmt == "<Q" and position > len(program) - 8:
                continue
            changed = bytearray(program)
            struct.pack_into(fmt, changed, position, extreme)
            path.write_bytes(seal(blobs, bytes(changed)))
            try:
                read_blobs(path)
            except KvcError:
                continue


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", "empty"),
        (b"GGUF\3\0\0\0", "GGUF"),
        (b"PK\3\4\x14\0", "zip"),
        (b"\x1c\0\0\0ET12", "ExecuTorch"),
        (struct.pack("<Q", 40) + b'{"a": {"dtype": "F32"}}', "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\n<html>", "web page"),
        (b"\x8bKVC\n\x1a\n" + bytes(121), "text mode"),
        (b"\x0bKVC\r\n\x1a\n" + bytes(120), "text mode"),
        (b"\x80\x02}q\0", "pickle"),
        (b"\x80\x04\x95\x0b", "pickle"),
        (b"\x93NUMPY", "numpy"),
        (b"\x08\0\0\0KVCP", "without its container"),
        (bytes(4096), "zeros"),
        (b"{}", "JSON"),
        (b"hello", "a text file"),
        (b"\xfe\xed\xfa\xce" + bytes(range(200, 256)), "nothing that kvc knows"),
    ],
)
def test_another_kind_of_file_is_named(path, head, kind):
    path.write_bytes(head)
    with pytest.raises(BadMagic, match=kind):
        BundleFile.open(path)


def test_the_kinds_of_damage_have_their_errors(path):
    write_tiny(path)
    raw = path.read_bytes()
    for change, error in (
        (raw[:60], Truncated),
        (reseal_header(raw[:8] + b"\7\0\0\0" + raw[12:]), UnsupportedVersion),
        (reseal_header(raw[:12] + b"\1\0\0\0" + raw[16:]), BadStructure),
        (raw[:-1] + bytes([raw[-1] ^ 1]), DigestMismatch),
        (
            reseal_header(raw[:32] + struct.pack("<Q", 1 << 40) + raw[40:]),
            LimitExceeded,
        ),
        (reseal_header(raw[:24] + struct.pack("<Q", 128) + raw[32:]), BadStructure),
    ):
        path.write_bytes(change)
        with pytest.raises(error):
            BundleFile.open(path)


@pytest.mark.parametrize(
    "change",
    [
        {"offset": 0},
        {"offset": 64},
        {"offset": 192},
        {"offset": 256},
        {"offset": 2**62},
        {"nbytes": 2**39},
        {"align": 0},
        {"align": 48},
        {"align": 1 << 17},
        {"align": 128},
        {"file": 1},
    ],
)
def test_a_blob_in_a_wrong_place_is_found(path, change):
    write_tiny(path)
    program = tiny_program()
    blob = replace(program.blobs[0], **change)
    changed = replace(program, blobs=(blob,))
    path.write_bytes(seal(parts(path)[0], encode(changed)))
    if change == {"align": 128}:  # as good as 64 here
        assert read_blobs(path)
        return
    with pytest.raises(FormatError):
        read_blobs(path)


def test_blobs_that_overlap_are_found(path):
    write_sample(path)
    blobs, _ = parts(path)
    with BundleFile.open(path) as bundle:
        program = bundle.program
    second = replace(program.blobs[1], offset=program.blobs[0].offset)
    changed = replace(program, blobs=(program.blobs[0], second, program.blobs[2]))
    path.write_bytes(seal(blobs, encode(changed)))
    with pytest.raises(BadProgram, match="blob"):
        read_blobs(path)


def test_a_hole_before_the_program_is_found(path):
    write_tiny(path)
    blobs, program = parts(path)
    path.write_bytes(seal(blobs + bytes(64), program))
    with pytest.raises(BadProgram, match="program"):
        read_blobs(path)


def test_a_file_that_changes_is_noticed(path):
    write_tiny(path)
    with BundleFile.open(path) as bundle:
        bundle.check_unchanged()
        os.truncate(path, 200)
        with pytest.raises(FileChanged):
            bundle.check_unchanged()
        with pytest.raises(Truncated):
            bundle.pread(190, 20)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, text in (
        ("missing", "No such file"),
        ("", "folder"),
        ("fifo", "special file"),
        ("loop", "symbolic links"),
        ("a\0b", "null"),
        ("x" * 300, "too long"),
    ):
        with pytest.raises(FileProblem, match=text):
            BundleFile.open(f"{tmp_path}/{name}")
    with pytest.raises(FileProblem, match="special"):
        BundleFile.open("/dev/null")


def test_closing_twice_is_fine_and_errors_leave_no_descriptor(path):
    bundle = BundleFile.open(write_and_name(path))
    bundle.close()
    bundle.close()
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    path.write_bytes(b"hello")
    for _ in range(5):
        with pytest.raises(BadMagic):
            BundleFile.open(path)
    assert len(list(descriptors.iterdir())) == before


def write_and_name(path):
    write_tiny(path)
    return path


def test_a_sample_program_is_what_its_bytes_say():
    assert len(sample_program().blobs) == len(SAMPLE_BLOBS)
