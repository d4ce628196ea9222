"""A backend of functions over arrays, as the drill of the page makes one."""

from dataclasses import replace

import drilled_backend
import numpy as np
import pytest
import torch
from drilled_backend import DrilledBackend, DrilledDelegate
from hf_models import build
from sealing import parts, seal
from torch import nn

from kvc.compiler import (
    CacheConfig,
    Method,
    compile_program,
    export_hf,
    register_backend,
)
from kvc.compiler.backends import BACKENDS
from kvc.runtime import load, register_delegate
from kvc.runtime.delegates.table import DELEGATES
from kvc.schema.codec import decode, encode
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadProgram, KernelFailed

TOKENS = np.arange(3, 20)[None]


@pytest.fixture(autouse=True)
def drilled(monkeypatch):
    """Register the backend for one test."""
    for table in (BACKENDS, DELEGATES):
        monkeypatch.setitem(table, "drilled", None)
        del table["drilled"]
    register_backend(DrilledBackend)
    register_delegate("drilled", DrilledDelegate)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "drilled.toml"
    path.write_text('[backend]\nname = "drilled"\n')
    return str(path)


def answers(path):
    with load(path) as program, program.session() as session:
        found = [session.prefill(TOKENS[:, :9])]
        found += [session.decode(TOKENS[:, i : i + 1]) for i in range(9, 12)]
    return np.stack(found)


def test_a_model_of_transformers_runs_with_it(tmp_path, recipe):
    for name, one in (("own", recipe), ("usual", "fp32")):
        made = export_hf(build("llama"), recipe=one, cache=CacheConfig(max_length=32))
        made.save(tmp_path / f"{name}.kvc")
    with BundleFile.open(tmp_path / "own.kvc") as file:
        program = file.program
        blocks = [program.methods[d.method].blocks[d.block] for d in program.delegates]
        taken = {step.op for block in blocks for step in block.graph.instructions}
    assert set(drilled_backend.FUNCTIONS) <= taken
    own, usual = answers(tmp_path / "own.kvc"), answers(tmp_path / "usual.kvc")
    assert np.abs(own - usual).max() <= 1e-5 * np.abs(usual).max()


class Counting(nn.Module):
    """Writes a state, and returns views of results and the same twice."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3))

    def forward(self, x):
        self.total.mul_(x)
        self.total.add_(x)
        y = self.total * x
        return y.transpose(0, 1), y, x + 1


def compiled(tmp_path, recipe):
    path = tmp_path / "counting.kvc"
    method = Method("forward", (torch.randn(2, 3),))
    compile_program(Counting(), [method], recipe).save(path)
    return path


def test_states_and_views_are_those_of_the_model(tmp_path, recipe):
    model, x = Counting(), torch.randn(2, 3)
    with load(compiled(tmp_path, recipe)) as program, program.session() as session:
        for _ in range(3):
            for found, wanted in zip(session.forward(x.numpy()), model(x), strict=True):
                np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6)


def test_a_function_that_fails_is_named_and_leaves_the_session_as_it_was(
    tmp_path, recipe, monkeypatch
):
    def failing(out, one, other, alpha):
        raise ZeroDivisionError("no sums today")

    x = np.ones((2, 3), np.float32)
    with load(compiled(tmp_path, recipe)) as program:
        usual = program.session(transactional=True)
        with usual as session:
            session.forward(x)
            before = np.array(session.state["total"])
            with monkeypatch.context() as patch:
                patch.setitem(drilled_backend.FUNCTIONS, "aten::add.Tensor", failing)
                program.release()
                with pytest.raises(KernelFailed, match=r"aten::add.Tensor.*no sums"):
                    session.forward(x)
            assert np.array_equal(session.state["total"], before)
            program.release()
            session.forward(x)


def test_code_that_it_does_not_take_is_refused(tmp_path, recipe):
    path = compiled(tmp_path, recipe)
    blobs, tail = parts(path)
    program = decode(tail, "m.kvc")
    (method,) = program.methods
    block = method.blocks[0]
    steps = tuple(
        replace(step, op="aten::maximum", arguments=step.arguments[:2])
        if step.op == "aten::mul.Tensor"
        else step
        for step in block.graph.instructions
    )
    graph = replace(block.graph, instructions=steps)
    blocks = (replace(block, graph=graph), *method.blocks[1:])
    wrong = replace(program, methods=(replace(method, blocks=blocks),))
    path.write_bytes(seal(blobs, encode(wrong)))
    text = r"does not take aten::maximum: drilled has"
    with (
        load(path) as loaded,
        loaded.session() as session,
        pytest.raises(BadProgram, match=text),
    ):
        session.forward(np.ones((2, 3), np.float32))


class Picking(nn.Module):
    """Computes with views that the backend's list does not have."""

    def forward(self, x):
        return x[0] * x[1:2].squeeze(0) + x.flip(0)[0]


def test_views_need_neither_a_place_in_the_list_nor_a_function(tmp_path, recipe):
    x, path = torch.randn(3, 4), tmp_path / "picking.kvc"
    bundle = compile_program(Picking(), [Method("forward", (x,))], recipe)
    bundle.save(path)
    blocks = [
        m.blocks[d.block]
        for m in bundle.program.methods
        for d in bundle.program.delegates
    ]
    steps = [step.op for block in blocks for step in block.graph.instructions]
    assert "aten::select.int" in steps
    with load(path) as program:
        found = program.call("forward", x.numpy())
    assert np.array_equal(found, Picking()(x).numpy())


def test_an_operator_without_a_function_is_named_at_load(tmp_path, recipe, monkeypatch):
    path = tmp_path / "picking.kvc"
    method = Method("forward", (torch.ones(3, 4),))
    compile_program(Picking(), [method], recipe).save(path)
    monkeypatch.delitem(drilled_backend.FUNCTIONS, "aten::mul.Tensor")
    monkeypatch.setattr(drilled_backend, "why_not", lambda *_: "")
    with (
        pytest.raises(
            BadProgram, match=r"take aten::mul\.Tensor: there is no function"
        ),
        load(path) as program,
    ):
        program.call("forward", np.ones((3, 4), np.float32))
