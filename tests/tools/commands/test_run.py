import fcntl

import numpy as np
import pytest
import torch
from data_programs import table_program, write_data_bundle
from summing_rows import summing_rows

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import generate, load

ROWS = Dim("rows", 1, 8)
TOKENS = np.array([[100, 101, 102]])


@pytest.fixture
def tokens(tmp_path):
    np.save(tmp_path / "tokens.npy", TOKENS)
    return tmp_path / "tokens.npy"


def test_results_are_printed_and_kept(kvc, tiny, tokens, tmp_path):
    out = tmp_path / "out.npy"
    result = kvc("run", tiny, "-m", "prefill", "-i", tokens, "-o", out)
    assert result.exit_code == 0, result.output
    assert "result 0: float32[1, 256]" in result.stdout
    kept = np.load(out)
    assert kept.shape == (1, 256)
    named = tmp_path / "out.npz"
    kvc("run", tiny, "-m", "prefill", "-i", f"tokens={tokens}", "-o", named)
    np.testing.assert_array_equal(np.load(named)["result_0"], kept)
    left = {"tokens.npy", "out.npy", "out.npz"}
    assert {path.name for path in tmp_path.iterdir()} == left


class Rows(torch.nn.Module):
    """Returns how many rows it gets."""

    def forward(self, x):
        return x + 1, x.shape[0]


def test_a_number_is_a_result_too(kvc, tmp_path):
    method = Method("forward", args=(torch.zeros(2, 3),), dynamic={"x": {0: ROWS}})
    compile_program(Rows().eval(), (method,)).save(tmp_path / "m.kvc")
    np.save(tmp_path / "x.npy", np.zeros((5, 3), np.float32))
    made = kvc("run", tmp_path / "m.kvc", "-i", tmp_path / "x.npy")
    assert "result 1: int64[]\n5" in made.stdout, made.output


def test_a_wrong_dtype_is_an_error(kvc, tiny, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3), np.float32))
    result = kvc("run", tiny, "-m", "prefill", "-i", tmp_path / "x.npy")
    assert result.exit_code == 1
    assert "input tokens: expected int64[1, seq]" in result.stderr


def test_an_unknown_method_is_an_error(kvc, tiny):
    result = kvc("run", tiny, "-m", "x")
    assert result.exit_code == 1
    assert "it has: prefill, decode" in result.stderr


def test_an_unknown_input_is_an_error(kvc, tiny, tokens):
    result = kvc("run", tiny, "-m", "prefill", "-i", f"token={tokens}")
    assert result.exit_code == 1
    assert "no input 'token' (did you mean 'tokens'?)" in result.stderr


def test_a_call_that_cannot_be_made_out_is_a_usage_error(kvc, tiny, tokens):
    assert "choose a --method: prefill, decode" in kvc("run", tiny).stderr
    result = kvc("run", tiny, "-m", "prefill")
    assert result.exit_code == 2
    wanted = "takes the inputs (tokens: int64[1, seq]); give an --input for tokens"
    assert wanted in result.stderr
    result = kvc("run", tiny, "-m", "prefill", "-i", tokens, "-i", tokens)
    assert "; 1 more are given" in result.stderr
    twice = [f"tokens={tokens}"] * 2
    result = kvc("run", tiny, "-m", "prefill", "-i", twice[0], "-i", twice[1])
    assert "given twice" in result.stderr
    result = kvc("run", tiny, "-m", "prefill", "-i", tokens, "-o", "out.txt")
    assert "must end in .npy or .npz" in result.stderr


def test_an_output_that_cannot_be_written_is_refused_before_it_runs(
    kvc, tiny, tmp_path
):
    arguments = ("run", tiny, "-m", "prefill", "-i", tmp_path / "unread.npy", "-o")
    result = kvc(*arguments, tmp_path / "none" / "o.npy")
    assert result.exit_code == 1
    assert f"the folder {tmp_path}/none does not exist" in result.stderr
    assert "must end in .npy" in kvc(*arguments, "").stderr


def test_a_token_out_of_range_is_an_error(kvc, tiny, tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, 256]]))
    result = kvc("run", tiny, "-m", "prefill", "-i", tmp_path / "x.npy")
    assert result.exit_code == 1
    assert "expected tokens of 0 to 255, got token 256" in result.stderr


def test_an_input_that_cannot_be_read_is_an_error(kvc, tiny, tmp_path):
    (tmp_path / "x.npy").write_text("no array")
    result = kvc("run", tiny, "-m", "prefill", "-i", tmp_path / "x.npy")
    assert result.exit_code == 1
    assert "not a .npy file of plain numbers" in result.stderr
    result = kvc("run", tiny, "-m", "prefill", "-i", tmp_path / "none.npy")
    assert "No such file" in result.stderr


@pytest.mark.parametrize("mode", ["map", "read", "huge"])
def test_residency_is_told_on_stderr_after_the_run(kvc, tiny, tokens, mode):
    plain = kvc("run", tiny, "-m", "prefill", "-i", tokens)
    options = ("--mode", mode, "--residency")
    result = kvc("run", tiny, "-m", "prefill", "-i", tokens, *options)
    assert result.exit_code == 0, result.output
    assert result.stdout == plain.stdout
    assert f"loaded with mode {mode}" in result.stderr
    assert "prefill + decode" in result.stderr
    assert plain.stderr == ""


def test_an_unknown_mode_is_a_usage_error(kvc, tiny):
    result = kvc("run", tiny, "--mode", "mmap")
    assert result.exit_code == 2
    assert "'mmap' is not one of" in result.stderr


def test_data_files_may_lie_elsewhere(kvc, tmp_path):
    built = table_program(3)
    path = write_data_bundle(tmp_path / "t.kvc", built, external=True)
    (found,) = tmp_path.glob("*.kvd")
    other = tmp_path / "other"
    other.mkdir()
    found.rename(other / found.name)
    result = kvc("run", path, "-m", "total")
    assert result.exit_code == 1
    assert found.name in result.stderr
    assert "--data-folder" in result.stderr
    folders = ("--data-folder", tmp_path, "--data-folder", other)
    assert "3. 3. 3." in kvc("run", path, "-m", "total", *folders).stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.kvc"
    summing_rows(path)
    return path


@pytest.mark.parametrize("row_lengths", [None, "last", "lengths=last"])
def test_there_are_as_many_rows_as_inputs_have(
    kvc, rows, tmp_path, monkeypatch, row_lengths
):
    """What says how many tokens count may be left out."""
    monkeypatch.chdir(tmp_path)
    tokens, lengths = np.array([[1, 2, 3], [4, 5, 6]]), np.array([1, 3])
    np.save("tokens.npy", tokens)
    np.save("last.npy", lengths)
    given = () if row_lengths is None else ("-i", f"{row_lengths}.npy")
    result = kvc(
        "run", rows, "-m", "prefill", "-i", "tokens.npy", *given, "-o", "o.npy"
    )
    assert result.exit_code == 0, result.output
    with load(rows) as program, program.session(batch=2) as session:
        expected = session.prefill(tokens, None if row_lengths is None else lengths)
    np.testing.assert_array_equal(np.load("o.npy"), expected)


def test_more_rows_than_a_bundle_takes_are_refused(kvc, rows, tmp_path):
    np.save(tmp_path / "tokens.npy", np.ones((5, 2), np.int64))
    result = kvc("run", rows, "-m", "prefill", "-i", tmp_path / "tokens.npy")
    assert result.exit_code == 1
    assert "batch: expected 1..4, got 5" in result.stderr


def test_a_method_that_was_misspelled_is_offered(kvc, tiny):
    message = "no method 'prefil' (did you mean 'prefill'?)"
    assert message in kvc("run", tiny, "-m", "prefil").stderr
    assert message in kvc("dump", tiny, "--ops", "prefil").stderr


@pytest.fixture
def told(tmp_path):
    """Arrays of tokens, each in a file."""
    for name, tokens in (("a", [[1, 2, 3]]), ("b", [[4]]), ("bad", [[4.0]])):
        np.save(tmp_path / f"{name}.npy", np.array(tokens))
    return tmp_path


def test_a_session_goes_on_from_call_to_call(kvc, tiny, told):
    file, out = told / "s.session", told / "out.npy"
    keep = ("--session", file)
    first = kvc("run", tiny, "-m", "prefill", "-i", told / "a.npy", *keep)
    assert first.exit_code == 0, first.output
    done = kvc("run", tiny, "-m", "decode", "-i", told / "b.npy", *keep, "-o", out)
    assert done.exit_code == 0, done.output
    with load(tiny) as program, program.session() as session:
        session.prefill(np.array([[1, 2, 3]]))
        assert np.array_equal(session.decode(np.array([[4]])), np.load(out))
        with program.restore(file) as kept:
            assert kept.position == 4
    names = {path.name for path in told.iterdir()}
    assert names == {"a.npy", "b.npy", "bad.npy", "s.session", "out.npy"}


def test_a_call_that_fails_leaves_the_session_as_it_was(kvc, tiny, told):
    file = told / "s.session"
    call = ("run", tiny, "--session", file, "-m")
    assert kvc(*call, "decode", "-i", told / "bad.npy").exit_code == 1
    assert not file.exists()
    kvc(*call, "prefill", "-i", told / "a.npy")
    before = file.read_bytes()
    assert kvc(*call, "decode", "-i", told / "bad.npy").exit_code == 1
    assert file.read_bytes() == before
    assert len(list(told.iterdir())) == 4


def test_what_is_no_session_stays(kvc, tiny, told):
    wrong = kvc("run", tiny, "-m", "decode", "-i", told / "b.npy", "--session", tiny)
    assert "it looks like a kvc bundle" in wrong.stderr
    assert kvc("verify", tiny).exit_code == 0
    wrong = kvc("run", tiny, "-m", "decode", "-i", told / "b.npy", "--session", told)
    assert "it is a folder" in wrong.stderr


def test_a_session_in_use_is_left_alone(kvc, tiny, told):
    file = told / "s.session"
    with (told / ".s.session.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        call = ("run", tiny, "--session", file, "-m", "decode", "-i", told / "b.npy")
        assert "another command is using this session" in kvc(*call).stderr
        assert not file.exists()
    assert kvc(*call).exit_code == 0  # a lock file that was left there is ignored


def test_what_a_generation_has_left_is_told(kvc, tiny, told):
    file = told / "s.session"
    with load(tiny) as program, program.session() as session:
        next(generate(session, [1, 2, 3], stop_tokens=[]))
        ((token,),) = session.pending
        session.save(file)
    call = ("run", tiny, "--session", file, "-m", "decode", "-i", told / "b.npy")
    told_first = kvc(*call).stderr
    assert (
        f"has 1 token generated but not run yet, [[{token}]]; to continue" in told_first
    )
    assert kvc(*call).stderr == ""


def test_a_file_that_says_to_hold_too_much_is_an_error(kvc, tiny, tmp_path):
    with (tmp_path / "x.npy").open("wb") as file:
        head = {"descr": "<i8", "fortran_order": False, "shape": (1, 1 << 58)}
        np.lib.format.write_array_header_1_0(file, head)
    wrong = kvc("run", tiny, "-m", "prefill", "-i", tmp_path / "x.npy")
    assert wrong.exit_code == 1
    assert f"cannot read {tmp_path}/x.npy: " in wrong.stderr
