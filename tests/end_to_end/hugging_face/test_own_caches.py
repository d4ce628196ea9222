"""Models over transformers' own caches, which write buffers through a plain object.

A prefill of 5 tokens and decode steps past every window, held against a deep copy that
was made before the module was compiled; the control is one wrong row of a cache.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from daily import RARELY
from hf_models import build
from hf_parity import NOTICED, TOLERANCE, text, zero_row
from own_caches import (
    SLOTS,
    HybridExported,
    StaticExported,
    calls,
    growing,
    hybrid,
    methods,
    static,
    tensors_of,
)
from torch import Tensor, nn
from transformers.cache_utils import StaticSlidingWindowLayer

from kvc.compiler import compile_program
from kvc.runtime import Program, Session, load
from kvc.schema.errors import CompileError

FIRST = 5
TOKENS = torch.from_numpy(text(SLOTS))
# Each architecture, and how its cache is made.
MODULES: dict[str, tuple[str, Callable[..., nn.Module]]] = {
    "static, rotary": ("llama", static),
    "static, learned positions": ("gpt2", static),
    "hybrid": ("ministral", hybrid),
    "static, as exported": ("llama", StaticExported),
    "hybrid, as exported": ("ministral", HybridExported),
}


# Each takes seconds to compile: the others come with the exhaustive run.
DAILY = ["hybrid"]
COMPILED = [n if n in DAILY else pytest.param(n, marks=RARELY) for n in MODULES]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module after it was compiled, what it was before, and its bundle."""

    module: nn.Module
    before: nn.Module
    program: Program


def made(name: str) -> nn.Module:
    architecture, make = MODULES[name]
    return make(build(architecture, shallow=True))


@pytest.fixture(scope="module", params=COMPILED)
def compiled(request, tmp_path_factory):
    module = made(request.param)
    before = copy.deepcopy(module)
    path = tmp_path_factory.mktemp("own") / "model.kvc"
    compile_program(module, methods(module, TOKENS, FIRST)).save(path)
    with load(path) as program:
        yield Compiled(module, before, program)


def eager(module: nn.Module) -> np.ndarray:
    """Return float32 [calls, vocab] of a copy of a module, with the cache as it is."""
    module = copy.deepcopy(module)
    with torch.no_grad():
        rows = [getattr(module, name)(*args) for name, args in calls_of(module)]
    return torch.cat(rows).numpy()


def calls_of(module: nn.Module) -> list[tuple[str, tuple[Tensor, ...]]]:
    return list(calls(module, TOKENS, FIRST))


def run(session: Session, module: nn.Module, spoil: int | None = None) -> np.ndarray:
    """Return the same of a session; from call `spoil` on with a row of zeros."""
    rows = []
    for i, (name, args) in enumerate(calls_of(module)):
        if i == spoil:
            zero_row(session.state["key_cache_0"], FIRST - 1)
        given = [argument.numpy() for argument in args]
        rows.append(session.call(name, *given).copy())
    return np.concatenate(rows)


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / wanted.std())


@pytest.mark.parametrize("name", MODULES)
def test_the_module_itself_equals_its_model_without_a_cache(name):
    module = made(name)
    with torch.no_grad():
        whole = module.model(input_ids=TOKENS, use_cache=False).logits[0].numpy()
    assert difference(eager(module), whole[FIRST - 1 :]) < TOLERANCE


def test_compiling_leaves_all_tensors_as_they_were(compiled):
    before = tensors_of(compiled.before)
    for name, tensor in tensors_of(compiled.module).items():
        assert torch.equal(tensor, before[name]), name


def test_the_cache_still_holds_the_tensors_of_the_buffers(compiled):
    for module in (compiled.before, compiled.module):
        cache = getattr(module, "static_cache", None) or module.cache
        assert module.key_cache_0 is cache.layers[0].keys
        assert module.cumulative_length_0 is cache.layers[0].cumulative_length


def test_a_prefill_and_steps_equal_eager(compiled):
    wanted = eager(compiled.before)
    with compiled.program.session() as session:
        assert difference(run(session, compiled.before), wanted) < TOLERANCE


def test_each_session_begins_with_an_empty_cache(compiled):
    wanted = eager(compiled.before)
    with compiled.program.session() as one, compiled.program.session() as other:
        run(one, compiled.before)
        assert difference(run(other, compiled.before), wanted) < TOLERANCE
        one.reset()
        assert difference(run(one, compiled.before), wanted) < TOLERANCE


def test_a_wrong_row_of_a_cache_is_noticed(compiled):
    wanted = eager(compiled.before)
    with compiled.program.session() as session:
        spoilt = run(session, compiled.before, spoil=1)
    assert difference(spoilt[:1], wanted[:1]) < TOLERANCE
    assert difference(spoilt, wanted) > NOTICED


def test_a_layer_that_counts_in_python_is_refused():
    module = static(build("mistral", shallow=True))
    (layer,) = module.cache.layers
    assert isinstance(layer, StaticSlidingWindowLayer)
    with pytest.raises(CompileError, match="cumulative_length_int"):
        compile_program(module, methods(module, TOKENS, FIRST))
    assert layer.cumulative_length_int == 0


def test_a_cache_that_grows_outside_of_buffers_is_refused():
    module = growing(build("llama", shallow=True))
    with pytest.raises(CompileError):
        compile_program(module, methods(module, TOKENS, FIRST))
