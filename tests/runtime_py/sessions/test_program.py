"""Loading, and calls on the program itself."""

import subprocess
import sys

import numpy as np
import pytest
from delegated_partitions import delegated_program
from hand_built import (
    affine_program,
    cache_program,
    elementwise_graph,
    method,
    program,
    write_bundle,
)
from stateful_programs import session_program

from kvc.runtime import (
    BadSetting,
    CacheOverflow,
    CallMismatch,
    Closed,
    FileProblem,
    InputMismatch,
    MissingDelegate,
    StateNeeded,
    UnknownName,
    load,
)


@pytest.fixture
def loaded(tmp_path):
    with load(write_bundle(tmp_path / "a.kvc", affine_program())) as opened:
        yield opened


def expected(x):
    return np.maximum(x * np.array([1, 2, 3, -4], np.float32) + x, 0)


def test_a_method_without_state_runs_on_the_program(loaded):
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(loaded.forward(x), expected(x))
    assert np.array_equal(loaded.call("forward", x=x), expected(x))


@pytest.mark.parametrize("seq", [1, 2, 7, 8])
def test_a_symbolic_size_takes_every_value_within_its_bounds(loaded, seq):
    x = np.arange(seq * 4, dtype=np.float32).reshape(seq, 4)
    assert np.array_equal(loaded.forward(x), expected(x))


def test_results_are_the_callers_own(loaded):
    x = np.ones((2, 4), np.float32)
    first = loaded.forward(x)
    first[:] = 99
    assert np.array_equal(loaded.forward(x), expected(x))


def test_a_later_call_does_not_change_earlier_results(loaded):
    first = loaded.forward(np.ones((2, 4), np.float32))
    kept = first.copy()
    loaded.forward(np.zeros((2, 4), np.float32))
    assert np.array_equal(first, kept)


def test_inputs_are_never_written(loaded):
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    kept = x.copy()
    loaded.forward(x)
    assert np.array_equal(x, kept)


def test_a_read_only_input_with_any_strides_is_taken(loaded):
    x = np.arange(24, dtype=np.float32).reshape(4, 6).T[::2]
    x.flags.writeable = False
    assert np.array_equal(loaded.forward(x), expected(x))


def test_a_tensor_gives_a_tensor_that_is_no_inference_tensor(loaded):
    import torch

    x = torch.arange(8.0).reshape(4, 2).T.requires_grad_()
    result = loaded.forward(x)
    assert torch.equal(result, torch.from_numpy(expected(x.detach().numpy())))
    assert not result.is_inference()


def test_bfloat16_goes_in_and_out_as_numpy_and_as_torch(tmp_path):
    import ml_dtypes
    import torch

    from kvc.schema.dtypes import DType

    graph = elementwise_graph("aten::neg", DType.BFLOAT16, (3,))
    path = write_bundle(tmp_path / "b.kvc", program([method("negate", graph, ["x"])]))
    with load(path) as opened:
        x = np.array([1, -2, 3], ml_dtypes.bfloat16)
        assert opened.negate(x).dtype == ml_dtypes.bfloat16
        assert opened.negate(x).tolist() == [-1, 2, -3]
        tensor = torch.tensor([1, -2, 3], dtype=torch.bfloat16)
        assert torch.equal(opened.negate(tensor), -tensor)


def test_a_wrong_dtype_names_the_input_and_both_types(loaded):
    with pytest.raises(InputMismatch) as caught:
        loaded.forward(np.ones((2, 4)))
    assert str(caught.value) == (
        "method forward, input x: expected float32[seq, 4] with seq in 1..8, "
        "got float64[2, 4]"
    )


@pytest.mark.parametrize("shape", [(4,), (1, 2, 4), (2, 5), (9, 4), (0, 4)])
def test_a_wrong_shape_names_the_bounds_and_what_was_found(loaded, shape):
    with pytest.raises(InputMismatch, match=r"seq in 1\.\.8.*, got float32\["):
        loaded.forward(np.zeros(shape, np.float32))


def test_a_python_number_is_refused_with_advice(loaded):
    with pytest.raises(InputMismatch, match="a Python float; pass a numpy array"):
        loaded.forward(1.0)


def test_a_list_is_refused(loaded):
    with pytest.raises(CallMismatch, match="a tensor, got a list of 2; pass"):
        loaded.forward([1, 2])


def test_a_missing_input_is_named(loaded):
    with pytest.raises(CallMismatch, match="method forward, x: missing"):
        loaded.forward()


def test_an_extra_input_is_refused(loaded):
    x = np.ones((2, 4), np.float32)
    with pytest.raises(CallMismatch, match="2 positional arguments"):
        loaded.forward(x, x)
    with pytest.raises(CallMismatch, match="mask: no such parameter"):
        loaded.forward(x, mask=x)


def test_a_refused_call_leaves_the_program_usable(loaded):
    with pytest.raises(InputMismatch):
        loaded.forward(np.zeros((9, 4), np.float32))
    x = np.ones((2, 4), np.float32)
    assert np.array_equal(loaded.forward(x), expected(x))


def test_an_unknown_method_lists_those_that_there_are(loaded):
    with pytest.raises(UnknownName, match="no method 'backward'; it has: forward"):
        loaded.call("backward")
    with pytest.raises(AttributeError, match="methods: forward"):
        _ = loaded.backward


def test_a_method_with_state_asks_for_a_session(tmp_path):
    path = write_bundle(tmp_path / "c.kvc", cache_program())
    with load(path) as opened, pytest.raises(StateNeeded, match="uses the state cache"):
        opened.look()


def test_a_method_that_is_fed_the_position_asks_for_a_session(tmp_path):
    built = session_program((1,), cached=False)
    with load(write_bundle(tmp_path / "f.kvc", built)) as opened:
        x = np.ones((1, 3, 2, 2), np.float32)
        with pytest.raises(StateNeeded, match="uses the state at; open a session"):
            opened.write(x)
        session = opened.session()
        assert session.capacity is None
        assert [session.write(x).tolist() for _ in range(3)] == [[0], [2], [4]]
        limited = opened.session(capacity=3)
        limited.write(x)
        with pytest.raises(CacheOverflow):
            limited.write(x)


def test_a_closed_program_says_so(loaded):
    loaded.close()
    loaded.close()
    with pytest.raises(Closed, match="the program has been closed"):
        loaded.forward(np.ones((2, 4), np.float32))
    with pytest.raises(Closed):
        loaded.session()


def test_it_tells_what_is_inside(loaded):
    assert list(loaded.methods) == ["forward"]
    assert list(loaded.data) == ["scale"]
    assert not loaded.states
    assert "forward" in dir(loaded)


def test_an_unknown_backend_is_refused_at_load(tmp_path):
    path = write_bundle(tmp_path / "d.kvc", delegated_program(backend="neverland"))
    with pytest.raises(
        MissingDelegate,
        match=r"neverland.*has: coreai, coreml, cpu, ethosu, mlx, qnn, vulkan, xnnpack"
        r".*register_delegate",
    ):
        load(path)


def test_a_missing_file_is_a_file_problem(tmp_path):
    with pytest.raises(FileProblem, match="No such file"):
        load(tmp_path / "nothing.kvc")


@pytest.mark.parametrize("thing", [None, 5, ["p.kvc"]])
def test_what_is_no_path_is_refused_with_advice(thing):
    with pytest.raises(BadSetting, match=r"path: expected a str or an os\.PathLike"):
        load(thing)


def test_the_bytes_of_a_bundle_are_no_path():
    match = r"path: expected .* write it to a file first\), got 12 bytes"
    with pytest.raises(BadSetting, match=match):
        load(b"KVCB\0\0\0\0\0\0\0\0")


@pytest.mark.parametrize("folders", [5, None, [None]])
def test_folders_that_are_none_are_refused_with_advice(folders, tmp_path):
    program, arrays = session_program(())
    write_bundle(tmp_path / "p.kvc", (program, arrays))
    with pytest.raises(BadSetting, match=r"expected a (sequence of folders|str or an)"):
        load(tmp_path / "p.kvc", data_folders=folders)


def test_loading_leaves_torch_out_and_is_quick(tmp_path):
    path = write_bundle(tmp_path / "a.kvc", affine_program())
    script = (
        "import sys; from kvc.runtime import load\n"
        f"with load({str(path)!r}) as program, program.session() as session:\n"
        "    assert program.data['scale'].array().tolist() == [1, 2, 3, -4]\n"
        "    assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_names_that_were_misspelled_are_offered(tmp_path):
    write_bundle(tmp_path / "p.kvc", session_program(()))
    with load(tmp_path / "p.kvc") as program, program.session() as session:
        for use, meant in (
            (lambda: program.call("wriet"), "write"),
            (lambda: session.call("wriet"), "write"),
            (lambda: session.state["cahce"], "cache"),
            (lambda: program.session(capacty=4), "capacity"),
        ):
            with pytest.raises(UnknownName, match=f"did you mean '{meant}'"):
                use()
        with pytest.raises(AttributeError, match="did you mean 'write'"):
            session.wriet()
