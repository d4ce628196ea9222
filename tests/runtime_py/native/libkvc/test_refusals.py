"""Each code of kvc.h: what is wrong, and that the session is as it was afterwards."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from libkvc import CBundle, CSession, Refused
from libkvc_models import kind_bundle, pair, save
from ring_models import RingDecoder, Shape, ring_methods
from sealing import parts, reseal_header, seal
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.schema.codec.records import TableReader
from kvc.schema.container import split_bundle


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kind_bundle("linear", tmp_path_factory.mktemp("linear") / "model.kvc")


def tokens(*numbers: int) -> np.ndarray:
    return np.array([numbers], np.int64)


def refused(function: Callable[[], object], code: str, match: str) -> None:
    with pytest.raises(Refused, match=match) as found:
        function()
    assert found.value.code == code


def opened(raw: bytes, folder: Path) -> CBundle:
    path = folder / "changed.kvc"
    path.write_bytes(raw)
    return CBundle(path)


@pytest.mark.parametrize("end", [0, 7, 64, 127, 4096, -1])
def test_a_truncated_file(end, linear, tmp_path):
    raw = linear.read_bytes()[:end]
    code = "DAMAGED" if end else "NOT_A_BUNDLE"
    refused(lambda: opened(raw, tmp_path), code, "cut short" if end else "empty file")


@pytest.mark.parametrize("at", [9, 20, 33, 80, 100, -5])
def test_a_flipped_byte(at, linear, tmp_path):
    raw = bytearray(linear.read_bytes())
    raw[at] ^= 4
    refused(lambda: opened(bytes(raw), tmp_path), "DAMAGED", "digest")


def test_a_flipped_byte_of_a_weight_is_found_when_it_is_used(linear, tmp_path):
    raw = bytearray(linear.read_bytes())
    raw[parts_start(linear) - 100] ^= 1
    with opened(bytes(raw), tmp_path) as bundle, bundle.session() as session:
        call = lambda: session.call("prefill", tokens(1, 2))  # noqa: E731
        refused(call, "DAMAGED", "do not have their digest")


class Wide(nn.Module):
    """A weight of more than 4 MiB, whose digest is one of leaves' digests."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1100, 1000)

    def widen(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_a_large_weight_is_checked_as_a_whole(tmp_path):
    import torch

    given = torch.ones(2, 1100)
    path = save(Wide(), [Method("widen", (given,))], tmp_path / "model.kvc")
    x = np.random.default_rng(0).random((2, 1100), np.float32)
    with CBundle(path) as bundle, bundle.session() as session, load(path) as program:
        found = session.call("widen", x)[0]
        assert found.tobytes() == program.widen(x).tobytes()
    raw = path.read_bytes()
    largest = max(load(path)._engine.program.blobs, key=lambda blob: blob.nbytes)
    assert largest.nbytes > 4 << 20
    for at in (0, 1 << 20, largest.nbytes - 1):
        bad = bytearray(raw)
        bad[largest.offset + at] ^= 1
        with opened(bytes(bad), tmp_path) as bundle, bundle.session() as session:
            call = lambda own=session: own.call("widen", x)  # noqa: E731
            refused(call, "DAMAGED", "do not have their digest")


def parts_start(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[24:32], "little")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (bytes(256), "zeros"),
        (b"GGUF" + bytes(200), "GGUF"),
        (b"PK\x03\x04" + bytes(200), "zip archive"),
        (b"\x8bKVD\r\n\x1a\n" + bytes(200), "data file"),
        (b"\x89KVCS\r\n\n" + bytes(200), "saved session"),
        (b"anything else", "nothing that kvc knows"),
        (b"\x8bKVC\n\x1a\n" + bytes(200), "text mode"),
    ],
)
def test_a_foreign_file(content, match, tmp_path):
    refused(lambda: opened(content, tmp_path), "NOT_A_BUNDLE", match)


def test_a_newer_file(linear, tmp_path):
    raw = bytearray(linear.read_bytes())
    raw[8] = 1
    newer = reseal_header(bytes(raw))
    refused(lambda: opened(newer, tmp_path), "UNSUPPORTED_VERSION", "version 1")


def test_a_file_that_is_not_there(tmp_path):
    refused(lambda: CBundle(tmp_path / "none.kvc"), "FILE_PROBLEM", "No such file")
    refused(lambda: CBundle(tmp_path), "FILE_PROBLEM", "not a plain file")


def test_a_bundle_without_lists_can_be_looked_at(tmp_path):
    path = tmp_path / "model.kvc"
    compile_program(Halves(), HALVES, "cpu_fp32").save(path)
    with CBundle(path) as bundle:
        assert bundle.methods[0][0] == "halve"
        refused(bundle.session, "NOT_BOUND", "no bound lists")


def test_lists_for_other_kernels(linear, tmp_path):
    blobs, program = parts(linear)
    place = TableReader.root(program, "Program").child("bounds")
    at = place.place("kernels_version")
    other = program[:at] + (77).to_bytes(4, "little") + program[at + 4 :]
    with opened(seal(blobs, other), tmp_path) as bundle:
        refused(bundle.session, "OTHER_KERNELS", "version 77.*kvc compile --bind")


def test_a_file_that_changed_while_it_was_open(linear, tmp_path):
    raw = linear.read_bytes()
    with opened(raw, tmp_path) as bundle, bundle.session() as session:
        session.call("prefill", tokens(1, 2))
        (tmp_path / "changed.kvc").write_bytes(raw + b"more")
        call = lambda: session.call("decode", tokens(1))  # noqa: E731
        refused(call, "FILE_CHANGED", "open it again")


def test_bundles_in_memory(linear):
    raw = np.frombuffer(linear.read_bytes(), np.uint8)
    room = np.zeros(raw.size + 128, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + raw.size] = raw
    content = room[start : start + raw.size]
    with CBundle(None, content) as bundle, bundle.session() as session:
        found = session.call("prefill", tokens(1, 2))[0]
    with load(linear) as program:
        assert found.tobytes() == program.session().prefill(tokens(1, 2)).tobytes()
    room[start + 8 : start + 8 + raw.size] = raw
    moved = room[start + 8 : start + 8 + raw.size]
    refused(lambda: CBundle(None, moved), "BAD_ARGUMENT", "multiple of 64")


def test_data_files_beside_a_bundle(linear, tmp_path):
    split = tmp_path / "apart.kvc"
    split_bundle(linear, split)
    (data,) = tmp_path.glob("*.kvd")
    with load(linear) as program:
        expected = program.session().prefill(tokens(1, 2)).tobytes()
    with CBundle(split) as bundle, bundle.session() as session:
        assert session.call("prefill", tokens(1, 2))[0].tobytes() == expected
    raw = data.read_bytes()
    data.write_bytes(raw[:-1])
    refused(lambda: CBundle(split), "DAMAGED", "cut short")
    data.unlink()
    refused(lambda: CBundle(split), "DATA_FILE_MISSING", f"{data.name} is not beside")
    other = tmp_path / "other"
    other.mkdir()
    shape = Shape(windows=(5,))
    rings = RingDecoder(shape), ring_methods(shape.longest)
    save(*rings, other / "model.kvc")
    split_bundle(other / "model.kvc", other / "apart.kvc")
    (theirs,) = other.glob("*.kvd")
    data.write_bytes(theirs.read_bytes())
    refused(lambda: CBundle(split), "DATA_FILE_MISMATCH", "of another bundle")
    data.unlink()
    data.symlink_to(theirs)
    refused(lambda: CBundle(split), "FILE_PROBLEM", "symbolic link")
    raw = np.frombuffer(split.read_bytes(), np.uint8)
    room = np.zeros(raw.size + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + raw.size] = raw
    content = room[start : start + raw.size]
    refused(lambda: CBundle(None, content), "DATA_FILE_MISSING", "kvc join")


def test_inputs_that_do_not_fit(linear):
    with pair(linear) as sessions:
        session = sessions.theirs
        sessions.call("prefill", tokens(1, 2, 3))
        for arguments, match in (
            ((), "takes 1 inputs, found 0"),
            ((tokens(1).astype(np.int32),), r"expected int64\[1, seq\].*found int32"),
            ((tokens(1)[0],), r"found int64\[1\]"),
            ((np.zeros((1, 0), np.int64),), "seq in 1..48"),
            ((np.zeros((2, 3), np.int64),), r"found int64\[2, 3\]"),
        ):
            call = lambda given=arguments: session.call("prefill", *given)  # noqa: E731
            refused(call, "INPUT_MISMATCH", match)
        sessions.compare()
        sessions.call("decode", tokens(4))


def test_a_token_outside_of_the_vocabulary_changes_nothing(linear):
    with pair(linear) as sessions:
        sessions.call("prefill", tokens(1, 2, 3))
        call = lambda: sessions.theirs.call("decode", tokens(16))  # noqa: E731
        refused(call, "INDEX_OUT_OF_RANGE", r"16 is outside of 0\.\.15")
        sessions.compare()
        sessions.call("decode", tokens(4))


def test_a_full_cache_changes_nothing(linear):
    with pair(linear) as sessions:
        sessions.call("prefill", tokens(*range(15), 1, 2, 3))
        call = lambda: sessions.theirs.call("prefill", tokens(*[1] * 40))  # noqa: E731
        refused(call, "CACHE_OVERFLOW", "row 0 holds 18 tokens, 40 more")
        sessions.compare()


class Counting(nn.Module):
    """A plain state that is written before an index is looked up."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        self.register_buffer("sums", torch.zeros(1, 4))
        self.table = nn.Embedding(8, 4)

    def add(self, x: Tensor, index: Tensor) -> Tensor:
        self.sums.add_(x)
        return self.table(index + self.sums.sum().long() * 0) + self.sums


def test_a_failure_after_a_plain_state_was_written_poisons(tmp_path):
    import torch

    x, index = torch.ones(1, 4), torch.ones(1, dtype=torch.int64)
    path = save(Counting(), [Method("add", (x, index))], tmp_path / "model.kvc")
    ones = np.ones((1, 4), np.float32)
    with CBundle(path) as bundle, bundle.session() as session:
        session.call("add", ones, np.array([1]))
        bad = lambda: session.call("add", ones, np.array([9]))  # noqa: E731
        refused(bad, "INDEX_OUT_OF_RANGE", "9 is outside")
        good = lambda: session.call("add", ones, np.array([1]))  # noqa: E731
        refused(good, "POISONED", "add left states partly written; reset")
        refused(session.fork, "POISONED", "reset")
        refused(lambda: session.save(tmp_path / "s"), "POISONED", "reset")
        session.reset()
        assert session.state("sums").tolist() == [[0, 0, 0, 0]]
        good()


class Halves(nn.Module):
    def halve(self, x: Tensor) -> Tensor:
        return x * 0.5


def _halves() -> list[Method]:
    import torch

    return [Method("halve", (torch.ones(3),), dynamic={"x": {0: Dim("n", 2, 9)}})]


HALVES = _halves()


def test_a_program_without_states(tmp_path):
    path = save(Halves(), HALVES, tmp_path / "model.kvc")
    given = np.arange(5, dtype=np.float32)
    with CBundle(path) as bundle, bundle.session() as session:
        assert session.call("halve", given)[0].tolist() == [0, 0.5, 1, 1.5, 2]
        assert session.shapes("halve", given[:3]) == [(3,)]
        assert session.capacity == -1
        refused(session.position, "NO_POSITION", "counts tokens")
        refused(lambda: session.rewind(1), "NO_POSITION", "counts tokens")
        refused(lambda: session.step([1]), "UNKNOWN_NAME", "prefill and decode")
        refused(lambda: bundle.session(n=3), "UNKNOWN_NAME", "not one that sessions")


def test_results_in_memory_of_the_caller(linear):
    with pair(linear) as sessions:
        session, given = sessions.theirs, tokens(1, 2, 3)
        assert session.shapes("prefill", given) == [(1, 3, 16)]
        result = np.zeros((1, 3, 16), np.float32)
        for wrong in (result[:, :2], result.astype(np.float64), result[0]):
            wrong = np.ascontiguousarray(wrong)
            call = lambda array=wrong: session.call_into("prefill", given, array)  # noqa: E731
            refused(call, "BAD_ARGUMENT", r"expected an array float32\[1, 3, 16\]")
        call = lambda: session.call_into("prefill", given)  # noqa: E731
        refused(call, "BAD_ARGUMENT", "has 1 outputs, found 0")
        sessions.compare()
        session.call_into("prefill", given, result)
        assert result.tobytes() == sessions.ours.prefill(given).tobytes()
        sessions.compare()


def test_sizes_of_sessions(linear):
    with CBundle(linear) as bundle:
        refused(lambda: bundle.session(depth=3), "UNKNOWN_NAME", "no size depth")
        refused(lambda: bundle.session(capacity=1), "BAD_ARGUMENT", r"expected 2\.\.48")
        refused(lambda: bundle.session(capacity=49), "BAD_ARGUMENT", "found 49")
        refused(lambda: bundle.session(-1), "BAD_ARGUMENT", "0 or more")
        refused(lambda: bundle.threads(0), "BAD_ARGUMENT", r"1\.\.64")


def test_rewinding_too_far(linear):
    with pair(linear) as sessions:
        sessions.call("prefill", tokens(1, 2, 3))
        rewind = sessions.theirs.rewind
        refused(lambda: rewind(4), "BAD_ARGUMENT", r"expected 0\.\.3")
        refused(lambda: rewind(-1), "BAD_ARGUMENT", "found -1")
        refused(lambda: rewind(1, 1), "BAD_ARGUMENT", "one for each of 1 rows")
        sessions.compare()


def test_names_that_are_not_there(linear):
    with CBundle(linear) as bundle, bundle.session() as session:
        assert bundle.method("nothing") == -1
        refused(lambda: bundle.metadata("nothing"), "UNKNOWN_NAME", "no metadata")
        refused(lambda: bundle.file("nothing"), "UNKNOWN_NAME", "it has none")
        refused(lambda: bundle.type("input", 9, 0), "BAD_ARGUMENT", "2 methods")
        refused(lambda: bundle.type("input", 0, 5), "BAD_ARGUMENT", "there are 1")
        refused(lambda: session.position(7), "BAD_ARGUMENT", "no cursor 7")


def test_what_a_bundle_says_of_itself(linear):
    with CBundle(linear) as bundle:
        assert [name for name, _ in bundle.methods] == ["prefill", "decode"]
        assert bundle.type("input", 0, 0) == ("tokens", "int64", [1, ("seq", 1, 48)])
        assert bundle.type("output", 1, 0) == ("", "float32", [1, 1, 16])
        sizes = [1, 1, ("capacity", 2, 48), 4]
        keys = bundle.states.index("k")
        assert bundle.type("state", keys) == ("k", "float32", sizes)
        assert bundle.symbols() == {"capacity": (2, 48, True), "seq": (1, 48, False)}


def test_a_session_is_used_by_one_thread_at_a_time(linear):
    with CBundle(linear) as bundle, bundle.session() as session:
        codes: list[str] = []

        def run() -> None:
            for _ in range(200):
                try:
                    session.call("prefill", tokens(*range(15)))
                    session.reset()
                except Refused as error:
                    codes.append(error.code)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert set(codes) <= {"BUSY", "CACHE_OVERFLOW"}
        session.reset()
        session.call("prefill", tokens(1, 2))


def test_sessions_of_several_threads_do_not_meet(linear):
    with CBundle(linear) as bundle, load(linear) as program:
        expected = program.session().prefill(tokens(*range(9)))
        wrong: list[int] = []

        def run(session: CSession) -> None:
            for turn in range(100):
                found = session.call("prefill", tokens(*range(9)))[0]
                if found.tobytes() != expected.tobytes():
                    wrong.append(turn)
                session.reset()

        sessions = [bundle.session() for _ in range(3)]
        threads = [threading.Thread(target=run, args=(one,)) for one in sessions]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        for session in sessions:
            session.close()
        assert not wrong
