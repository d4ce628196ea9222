"""Methods that run from bound lists give the bits that their graphs give."""

from collections.abc import Callable

import hf_models
import numpy as np
import pytest
from daily import only
from listed_bundles import save_listed, without_lists

from kvc.compiler import Dim, Method, compile_program, export_hf
from kvc.runtime import IndexOutOfRange, load, record
from kvc.runtime.bound_lists import bind_program, check_lists
from kvc.runtime.execution.frames import bind_graph
from kvc.schema.codec import decode, encode
from kvc.schema.container import BundleFile

TOKENS = np.random.default_rng(3).integers(0, hf_models.VOCAB, (1, 40))
RECURRENT = ("mamba", "qwen3_next", "lfm2")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the path of a model's bundle, compiled once."""
    folder, made = tmp_path_factory.mktemp("lists"), {}

    def find(name, recipe="cpu_q8"):
        if (name, recipe) not in made:
            bundle = export_hf(hf_models.build(name), recipe=recipe)
            made[name, recipe] = save_listed(bundle, folder / f"{name}-{recipe}.kvc")
        return made[name, recipe]

    return find


def played(path, play: Callable[..., list]):
    """Return what a play gives from lists and from graphs."""
    with load(path) as program, program.session() as session:
        listed = play(session)
    with without_lists(), load(path) as program, program.session() as session:
        return listed, play(session)


def play(session):
    """Read prompts of several lengths and single tokens, fork, and go on."""
    found = [session.prefill(TOKENS[:, :7]), session.decode(TOKENS[:, 7:8])]
    for first, end in ((8, 9), (9, 13), (13, 29), (29, 36)):
        found.append(session.prefill(TOKENS[:, first:end]))
    with session.fork() as other:
        found.append(other.decode(TOKENS[:, 36:37]))
    return [*found, session.decode(TOKENS[:, 37:38])]


@only(name=["llama", "gemma3_text", "qwen3_next"], recipe=["cpu_q8"])
@pytest.mark.parametrize("recipe", ["cpu_q8", "cpu_q4", "cpu_fp32"])
@pytest.mark.parametrize("name", hf_models.RUNNING)
def test_architectures_run_from_lists_with_the_bits_of_their_graphs(
    saved, name, recipe
):
    listed, bound = played(saved(name, recipe), play)
    for one, other in zip(listed, bound, strict=True):
        np.testing.assert_array_equal(one, other)


def test_lists_are_used_and_nothing_is_bound(saved, monkeypatch):
    monkeypatch.setattr("kvc.runtime.calls.contexts.bind_graph", None)
    with load(saved("llama")) as program, program.session() as session:
        assert all(np.isfinite(one).all() for one in play(session))


def test_blocks_are_not_read_to_open_and_run_a_bundle(saved, monkeypatch):
    def read(*_):
        raise AssertionError("a block is read")

    monkeypatch.setattr("kvc.schema.codec.late_blocks.LateBlocks.settle", read)
    with load(saved("llama")) as program, program.session() as session:
        play(session)


def test_a_recorded_call_runs_the_graph_that_knows_its_instructions(saved):
    with load(saved("llama")) as program, program.session() as session:
        session.prefill(TOKENS[:, :4])
        with record() as recorder:
            session.decode(TOKENS[:, 4:5])
    assert "kvc::attention" in {span.op for span in recorder.spans}


def test_sizes_that_no_list_includes_are_bound_from_the_graph(saved, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return bind_graph(*arguments)

    monkeypatch.setattr("kvc.runtime.calls.contexts.bind_graph", counted)
    monkeypatch.setattr("kvc.schema.bounds.Bounds.find", lambda *_: None)
    with load(saved("llama")) as program, program.session() as session:
        session.prefill(TOKENS[:, :4])
    assert calls


def test_lists_of_other_kernels_are_left_aside(saved, monkeypatch):
    with load(saved("llama")) as program:
        library = program._engine._resources.lists(0)._library
        monkeypatch.setattr(library, "version", library.version + 1)
        assert load(saved("llama"))._engine._resources.lists(0) is None


def test_a_step_that_fails_tells_its_instruction(tmp_path):
    import torch

    class Look(torch.nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return torch.index_select(x * 2, 0, at) + 1

    x, at = torch.ones(4, 3), torch.tensor([1, 2])
    methods = [Method("forward", (x, at), dynamic={"at": {0: Dim("count", 1, 9)}})]
    bundle = compile_program(Look(), methods, "cpu_fp32")
    path = save_listed(bundle, tmp_path / "look.kvc")
    with load(path) as program:
        np.testing.assert_array_equal(program.forward(x.numpy(), at.numpy())[0], 3)
        with pytest.raises(IndexOutOfRange, match=r"method forward.*index 7") as listed:
            program.forward(x.numpy(), np.array([0, 7]))
    with (
        without_lists(),
        load(path) as program,
        pytest.raises(IndexOutOfRange) as bound,
    ):
        program.forward(x.numpy(), np.array([0, 7]))
    assert str(listed.value) == str(bound.value)


def test_a_step_that_fails_in_a_scan_or_after_it_tells_its_instruction(tmp_path):
    import torch
    from torch._higher_order_ops.scan import scan

    class Scans(torch.nn.Module):
        def after(self, h: torch.Tensor, xs: torch.Tensor, at: torch.Tensor):
            _, ys = scan(lambda h, x: (h * 0.5 + x, (h + x).clone()), h, xs)
            return torch.index_select(ys, 0, at) + 1

        def inside(self, h: torch.Tensor, table: torch.Tensor, at: torch.Tensor):
            def step(h, at):
                return h + torch.index_select(table, 0, at).sum(0), h.clone()

            return scan(step, h, at)[1]

    h, xs, at = torch.ones(3), torch.ones(4, 3), torch.tensor([[1], [2], [3]])
    methods = [Method("after", (h, xs, at[:, 0])), Method("inside", (h, xs, at))]
    path = save_listed(compile_program(Scans(), methods, "cpu_fp32"), tmp_path / "s")
    bad = np.array([[1], [9], [2]])

    def fail():
        told = []
        with load(path) as program:
            for run, wrong in ((program.after, bad[:, 0]), (program.inside, bad)):
                with pytest.raises(IndexOutOfRange, match="index 9") as failure:
                    run(h.numpy(), xs.numpy(), wrong)
                told.append(str(failure.value))
        return told

    listed = fail()
    with without_lists():
        assert fail() == listed


def test_scratch_memory_stays_for_a_method_without_inputs_and_results(tmp_path):
    import torch

    class Bumped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("k", torch.eye(64))

        def bump(self):
            self.k.copy_(torch.tanh(self.k @ self.k.t()) + self.k.t())

        def read(self, x: torch.Tensor) -> torch.Tensor:
            return (self.k @ x).softmax(0).t() @ x

    x = torch.ones(64, 500)
    methods = [Method("bump", ()), Method("read", (x,))]
    path = save_listed(compile_program(Bumped(), methods, "cpu_fp32"), tmp_path / "b")

    def play(session):
        session.bump()  # needs less scratch memory than the next call
        session.read(x.numpy())
        session.bump()
        return [session.read(x.numpy())]

    listed, bound = played(path, play)
    np.testing.assert_array_equal(listed[0], bound[0])


def test_equal_programs_have_equal_lists_that_are_read_back(saved):
    with BundleFile(saved("llama"), thorough=True) as file:
        program = file.program
    bounds, refused = bind_program(program)
    assert refused == {}
    assert bounds.columns == program.bounds.columns
    assert bounds.lists == program.bounds.lists
    assert decode(encode(program), "again") == program
    assert check_lists("llama.kvc", program) == ""


def test_lists_are_no_part_of_the_identity(tmp_path, saved):
    bundle = export_hf(hf_models.build("llama"), recipe="cpu_q8")
    bundle.save(tmp_path / "plain.kvc")
    with BundleFile(tmp_path / "plain.kvc") as plain, BundleFile(saved("llama")) as own:
        assert plain.identity == own.identity == own.program.bounds.identity.hex()
        assert plain.digest != own.digest


def test_methods_without_native_steps_are_named():
    import torch

    methods = [Method("forward", (torch.ones(1, 8),))]
    for recipe, reason in (("fp32", "no backend runs"), ("xnnpack_fp32", "xnnpack")):
        program = compile_program(torch.nn.Linear(8, 8), methods, recipe).program
        bounds, refused = bind_program(program)
        assert bounds is None
        assert reason in refused["forward"]
