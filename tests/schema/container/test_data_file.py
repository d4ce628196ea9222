import hashlib
import os
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from named_bytes import SMALL, data_program, read_blobs, save_data
from sealing import parts, reseal_header, seal_data

from kvc.schema.codec import decode_index, encode, encode_index
from kvc.schema.container import (
    BundleFile,
    Content,
    DataFileReader,
    save_bundle,
    verify_bundle,
    verify_data_file,
)
from kvc.schema.container.header import DATA, Header, pack_header
from kvc.schema.dtypes import DType
from kvc.schema.errors import (
    BadMagic,
    BadProgram,
    BadStructure,
    DigestMismatch,
    FileProblem,
    FormatError,
    KvcError,
    LimitExceeded,
    Truncated,
    UnsupportedVersion,
    WrongKind,
)
from kvc.schema.model import Blob
from kvc.schema.types import TensorType
from kvc.schema.verify import limits

EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
TINY = {"a": b"weights of a", "b": b"of b"}


@pytest.fixture
def bundle(tmp_path):
    return tmp_path / "model.kvc"


@pytest.fixture
def data(bundle):
    """The path of a data file of two small blobs."""
    return Path(save_data(bundle, TINY, external=True).data_path)


def test_the_index_says_where_blobs_lie(data):
    with DataFileReader(data) as file:
        assert [(b.nbytes, b.file, b.offset, b.align) for b in file.blobs] == [
            (12, 0, 128, 64),
            (4, 0, 192, 64),
        ]
        assert file.pread(192, 4) == b"of b"
        assert file.digest.hex().startswith(data.stem.rpartition("-")[2])
    verify_data_file(data)


def test_every_flipped_bit_is_found(data, bundle):
    raw = data.read_bytes()
    fd = os.open(data, os.O_RDWR)
    for position, byte in enumerate(raw):
        for bit in range(8):
            os.pwrite(fd, bytes([byte ^ 1 << bit]), position)
            with pytest.raises(FormatError):
                verify_data_file(data)
        with pytest.raises(KvcError):
            verify_bundle(bundle)
        os.pwrite(fd, bytes([byte]), position)
    os.close(fd)
    verify_bundle(bundle)


def test_every_truncation_is_found(data):
    raw = data.read_bytes()
    for size in range(len(raw)):
        data.write_bytes(raw[:size])
        with pytest.raises(FormatError):
            verify_data_file(data)


def test_bytes_behind_the_end_are_found(data):
    raw = data.read_bytes()
    for extra in (1, 4, 64, 4096):
        data.write_bytes(raw + bytes(extra))
        with pytest.raises(Truncated, match="bytes"):
            verify_data_file(data)


@pytest.mark.parametrize("offset", [8, 12, 16, 24, 32, 72, 80, 88])
@pytest.mark.parametrize("extreme", EXTREMES)
def test_an_extreme_in_the_header_is_found(data, offset, extreme):
    raw = bytearray(data.read_bytes())
    fmt, size = ("<I", 4) if offset < 16 else ("<Q", 8)
    before = raw[offset : offset + size]
    struct.pack_into(fmt, raw, offset, extreme & (2 ** (8 * size) - 1))
    if raw[offset : offset + size] == before:
        return
    data.write_bytes(reseal_header(bytes(raw)))
    with pytest.raises(FormatError):
        verify_data_file(data)


def test_an_extreme_in_any_word_of_the_index_is_found_or_harmless(data):
    blobs, index = parts(data)
    for position in range(0, len(index) - 7, 4):
        for extreme in EXTREMES:
            changed = bytearray(index)
            struct.pack_into(
                "<I" if extreme < 2**32 else "<Q", changed, position, extreme
            )
            data.write_bytes(seal_data(blobs, bytes(changed)))
            try:
                verify_data_file(data)
            except FormatError:
                continue


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"digest": b"short"}, BadProgram),
        ({"digest": bytes(32)}, DigestMismatch),
        ({"nbytes": 2**41}, LimitExceeded),
        ({"nbytes": 2**39}, BadProgram),
        ({"nbytes": 5}, DigestMismatch),
        ({"file": 1}, BadProgram),
        ({"offset": 2**63}, LimitExceeded),
        ({"offset": 2**62}, BadProgram),
        ({"offset": 0}, BadProgram),
        ({"offset": 128}, BadProgram),
        ({"offset": 256}, BadProgram),
        ({"offset": 193}, BadProgram),
        ({"align": 0}, BadProgram),
        ({"align": 48}, BadProgram),
        ({"align": 1 << 17}, BadProgram),
    ],
)
def test_an_index_with_an_impossible_blob_is_refused(data, change, error):
    blobs, index = parts(data)
    first, second = decode_index(index, "x")
    changed = encode_index([first, replace(second, **change)])
    data.write_bytes(seal_data(blobs, changed))
    with pytest.raises(error):
        verify_data_file(data)


def test_an_index_out_of_order_or_with_a_blob_twice_is_refused(data):
    blobs, index = parts(data)
    first, second = decode_index(index, "x")
    twice = replace(second, digest=first.digest, nbytes=first.nbytes)
    for wrong in ([second, first], [first, twice]):
        data.write_bytes(seal_data(blobs, encode_index(wrong)))
        with pytest.raises(BadProgram, match=r"ascend|one digest"):
            DataFileReader(data)


def test_an_index_speaks_of_no_other_file(data):
    """An empty blob in another file leaves no hole in this one."""
    empty = Blob(hashlib.sha256(b"").digest(), 0, 1, 128, 64)
    data.write_bytes(seal_data(b"", encode_index([empty])))
    with pytest.raises(BadProgram, match="no such file"):
        DataFileReader(data)


def test_an_index_has_a_limit_of_its_own(data, monkeypatch):
    monkeypatch.setattr(limits, "MAX_BLOBS", 1)
    with pytest.raises(LimitExceeded, match="number of blobs"):
        DataFileReader(data)


def test_an_index_that_is_too_large_is_not_even_read(data):
    blobs, index = parts(data)
    data.write_bytes(seal_data(blobs, index + bytes(limits.MAX_INDEX_NBYTES)))
    with pytest.raises(LimitExceeded, match="the index, in bytes"):
        DataFileReader(data)


def test_an_index_at_the_limit_opens_quickly(data):
    many = [Blob(i.to_bytes(32, "big"), 0, 0, 128, 64) for i in range(limits.MAX_BLOBS)]
    data.write_bytes(seal_data(b"", encode_index(many)))
    start = time.process_time()
    with DataFileReader(data) as file:
        assert len(file.blobs) == limits.MAX_BLOBS
    assert time.process_time() - start < 2


def test_a_hole_before_the_index_is_found(data):
    blobs, index = parts(data)
    data.write_bytes(seal_data(blobs + bytes(64), index))
    with pytest.raises(BadProgram, match="index"):
        DataFileReader(data)


def test_padding_before_the_index_is_zero(data):
    blobs, index = parts(data)
    data.write_bytes(seal_data(blobs[:-1] + b"\1", index))
    with pytest.raises(BadStructure, match="padding"):
        DataFileReader(data)


def test_a_program_is_no_index(data):
    blobs, _ = parts(data)
    data.write_bytes(seal_data(blobs, encode(data_program({}))))
    with pytest.raises(BadMagic, match="KVCD"):
        DataFileReader(data)


def test_another_version_is_told_apart(data):
    raw = data.read_bytes()
    data.write_bytes(reseal_header(raw[:8] + b"\7\0\0\0" + raw[12:]))
    with pytest.raises(UnsupportedVersion):
        DataFileReader(data)


def test_the_two_kinds_of_file_are_told_apart(data, bundle):
    with pytest.raises(WrongKind, match=r"it is the data file .*give the \.kvc"):
        BundleFile(data)
    with pytest.raises(WrongKind, match="it is a kvc bundle"):
        DataFileReader(bundle)


def test_what_is_no_plain_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name, text in (("missing", "No such"), ("", "folder"), ("fifo", "special")):
        with pytest.raises(FileProblem, match=text):
            DataFileReader(f"{tmp_path}/{name}")


BLOBS = st.builds(
    Blob,
    digest=st.binary(min_size=32, max_size=32),
    nbytes=st.integers(0, 2**64 - 1),
    file=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 2**64 - 1),
    align=st.integers(0, 2**32 - 1),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(BLOBS, max_size=9))
def test_any_index_comes_back_and_equal_ones_are_equal_bytes(blobs):
    raw = encode_index(blobs)
    assert decode_index(raw, "x") == tuple(blobs)
    assert encode_index(decode_index(raw, "x")) == raw


@pytest.mark.exhaustive
@pytest.mark.parametrize("external", [False, True])
def test_blobs_behind_four_gibibytes_are_read(tmp_path, external):
    """The first blob is 5 GiB of zeros, which take no room on disk when read sparse."""
    piece, tail = memoryview(bytes(1 << 24)), b"after 4 GiB" * 1000
    program = data_program({"tail": tail})
    big = replace(program.names[0], name="big", type=huge_type(5 << 30), blob=1)
    program = replace(program, names=(big, *program.names))

    def content(name):
        if name == 0:
            return Content(5 << 30, lambda: (piece for _ in range(320)), 0)
        return Content(len(tail), lambda: iter([memoryview(tail)]), 1)

    path = tmp_path / "m.kvc"
    saved = save_bundle(path, program, content, external=external)
    assert saved.program.blobs[1].offset > 5 << 30
    verify_bundle(path)
    path.unlink()
    Path(saved.data_path or path).unlink(missing_ok=True)


def huge_type(nbytes):
    return TensorType(DType.UINT8, (nbytes >> 20, 1 << 20))


def test_a_data_file_far_beyond_four_gibibytes_is_sparse_and_read(tmp_path):
    """A blob of zeros is a hole in the file; its digest is known from its leaves."""
    nbytes, first = 6 << 30, 1 << 16
    leaf = hashlib.sha256(bytes(1 << 20)).digest()
    zeros_digest = hashlib.sha256(b"kvc-tree" + leaf * (nbytes >> 20)).digest()
    zeros = Blob(zeros_digest, nbytes, 0, first, first)
    small = Blob(hashlib.sha256(b"end").digest(), 3, 0, nbytes + first, 64)
    index = encode_index([zeros, small])
    start, digest = small.offset + 64, hashlib.sha256(index).digest()
    header = Header(0, 0, start + len(index), start, len(index), digest)
    path = tmp_path / "m.kvd"
    with path.open("wb") as file:
        file.write(pack_header(header, DATA))
        file.seek(small.offset)
        file.write(b"end")
        file.seek(start)
        file.write(index)
    with DataFileReader(path) as opened:
        assert opened.size > nbytes
        assert opened.pread(small.offset, 3) == b"end"


def test_small_bundles_read_back(bundle):
    save_data(bundle, SMALL, external=True)
    assert read_blobs(bundle)[0] == SMALL["a"]
