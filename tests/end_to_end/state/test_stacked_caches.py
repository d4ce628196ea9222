"""Caches of all layers in one buffer are caches, as those in buffers of their own."""

import copy

import numpy as np
import pytest
import torch
from daily import only
from stacked_caches import CAPACITY, LAYERS, WAYS, Stacked, stacked_methods
from state_runs import opened

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.compiler.lower.copy_budget import PlainCache
from kvc.runtime import generate
from kvc.schema.errors import UnknownName
from kvc.schema.model import StateKind
from kvc.tools.reports.memory import describe_copies

PROMPT = torch.arange(6)[None]


def token(number):
    return torch.tensor([[number]])


def eager(model, calls):
    model = copy.deepcopy(model)
    with torch.no_grad():
        return [getattr(model, name)(*args) for name, *args in calls], model


def close(found, expected):
    found = torch.from_numpy(found.copy()) if isinstance(found, np.ndarray) else found
    torch.testing.assert_close(found, expected)


@only(how=["index_copy", "slice of one", "cache_update", "one buffer", "second axis"])
@pytest.mark.parametrize("how", WAYS)
def test_a_stack_of_caches_is_linear_rewinds_and_fills(how, tmp_path):
    model = Stacked(how)
    calls = [("prefill", PROMPT), ("decode", token(3)), ("decode", token(5))]
    expected, after = eager(model, calls)
    with opened(model, stacked_methods(), tmp_path) as program:
        kinds = [s.kind for s in program.states.values() if s.name != "position"]
        assert kinds == [StateKind.LINEAR] * 2 * LAYERS
        reports = describe_copies(program._engine.program)
        assert {(one.verdict, one.bytes_per_call) for one in reports} == {("SAFE", 0)}
        with program.session() as session:
            assert session.capacity == CAPACITY
            close(session.prefill(PROMPT), expected[0])
            session.decode(token(9))
            session.rewind(1)
            close(session.decode(token(3)), expected[1])
            with session.fork() as other:
                other.decode(token(7))
                close(session.decode(token(5)), expected[2])
            for name, buffer in after.named_buffers():
                close(session.state[name], buffer)
        with program.session() as session:
            made = generate(session, PROMPT[0].tolist(), max_tokens=50)
            # The last token needs no place: nothing comes after it.
            assert len(list(made)) == CAPACITY - PROMPT.shape[1] + 1
            assert made.reason == "length"


@pytest.mark.filterwarnings("ignore::kvc.compiler.lower.copy_budget.PlainCache")
@only(how=["index_copy", "one buffer"])
@pytest.mark.parametrize("how", WAYS)
def test_methods_may_clear_a_stack_and_read_all_of_it(how, tmp_path):
    model = Stacked(how)
    calls = [("prefill", PROMPT), ("peek",), ("forget",), ("decode", token(2))]
    expected, after = eager(model, [*calls, ("peek",)])
    methods = stacked_methods("peek", "forget")
    with opened(model, methods, tmp_path) as program, program.session() as session:
        for (name, *args), right in zip([*calls, ("peek",)], expected, strict=True):
            if right is not None:
                close(session.call(name, *args), right)
            else:
                session.call(name, *args)
        for name, buffer in after.named_buffers():
            close(session.state[name], buffer)


def test_a_method_that_reads_all_of_a_stack_leaves_its_caches_linear(tmp_path):
    with opened(Stacked("index_copy"), stacked_methods("peek"), tmp_path) as program:
        assert program.states["k[0]"].kind is StateKind.LINEAR


def test_a_session_chooses_the_size_of_a_stack(tmp_path):
    class Open(Stacked):
        def _written(self, layer, name, new, places):
            cache = getattr(self, name)[layer]
            cache.index_copy_(2, places, new)
            return cache

    model = Open("index_copy")
    capacity = Dim("capacity", 4, 4096)
    specs = [StateSpec(name, axis=3, capacity=capacity) for name in ("k", "v")]
    expected, _ = eager(Open("index_copy"), [("prefill", PROMPT), ("decode", token(1))])
    with (
        opened(model, stacked_methods(), tmp_path, states=specs) as program,
        program.session(capacity=1024) as session,
    ):
        assert session.capacity == 1024
        close(session.prefill(PROMPT), expected[0])
        close(session.decode(token(1)), expected[1])
        assert session.state["k"].shape == (LAYERS, 1, 2, 1024, 4)


def test_rows_of_a_stack_are_rows(tmp_path):
    model = Stacked("cache_update", batch=2)
    prompts = torch.stack([PROMPT[0], PROMPT[0].flip(0)])
    tokens = torch.tensor([[1], [4]])
    expected, _ = eager(model, [("prefill", prompts), ("decode", tokens)])
    methods = stacked_methods(batch=2)
    with opened(model, methods, tmp_path) as program, program.session() as session:
        close(session.prefill(prompts), expected[0])
        close(session.decode(tokens), expected[1])


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3, 2, 4))

    def forward(self, x):
        for layer in range(3):
            self.h[layer].mul_(0.5).add_(x)
        return self.h.sum(0)


def test_a_stack_of_recurrent_states_stays_one_state(tmp_path):
    methods = [Method("forward", (torch.ones(2, 4),))]
    with opened(Recurrent(), methods, tmp_path) as program:
        assert list(program.states) == ["h"]


def test_a_name_that_is_no_stack_is_unknown(tmp_path):
    with (
        opened(Stacked("index_copy"), stacked_methods(), tmp_path) as program,
        program.session() as session,
    ):
        with pytest.raises(UnknownName, match="'w'"):
            session.state["w"]
        assert "k" not in session.state
        assert session.state["k[1]"].shape == (1, 2, CAPACITY, 4)


def test_a_cache_that_is_not_known_as_one_is_told():
    text = r"state k \(and 1 more\) is written like a cache at stacked_caches:\d+"
    with pytest.warns(PlainCache, match=text) as given:
        compile_program(Stacked("scatter"), stacked_methods())
    assert {one.filename for one in given} == {__file__}
