"""float16 caches in sessions: against the eager model that rounds alike.

`session_kinds.py` has them too, for whatever may be done with a session.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from cached_models import BATCH, SLOTS, VOCAB, Linear, row_methods, simple_methods
from daily import every
from int8_models import (
    HalfIndexCopied,
    HalfKeptRing,
    HalfLinear,
    HalfRing,
    HalfRows,
    HalfSwapped,
)
from plain_recipes import PLAIN_RECIPES
from ragged_models import VOCAB as RAGGED_VOCAB
from ragged_models import Ragged, ragged_methods, ragged_specs
from state_runs import opened

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.schema.dtypes import DType
from kvc.schema.model import StateKind

FLOAT16 = load_recipe("fp32", cache="float16")
TEXT = np.random.default_rng(8).integers(0, VOCAB, (1, SLOTS))
KINDS = {
    "linear": HalfLinear,
    "slots before heads": HalfSwapped,
    "index_copy": HalfIndexCopied,
    "ring": HalfRing,
    "ring that keeps": HalfKeptRing,
}


def methods_of(kind: str) -> list[Method]:
    prefill, decode = simple_methods()
    longest = 16 if "ring" in kind else SLOTS
    seq = {"tokens": {1: Dim("seq", 1, longest)}}
    return [Method("prefill", args=prefill.args, dynamic=seq), decode]


@every(2, "kind")
@pytest.mark.parametrize("kind", KINDS)
def test_prefill_then_decode_equals_the_model_that_rounds(
    kind: str, tmp_path: Path, backend: str
) -> None:
    model = KINDS[kind]()
    with torch.no_grad():
        expected = model.reference(torch.from_numpy(TEXT)).numpy()
    with opened(model, methods_of(kind), tmp_path, recipe=FLOAT16) as program:
        made = StateKind.RING if "ring" in kind else StateKind.LINEAR
        for name in ("k", "v"):
            state = program.states[name]
            assert (state.type.dtype, state.kind) == (DType.FLOAT16, made)
        for method in program.methods.values():
            assert not any(update.reason for update in method.updates)
        with program.session() as session:
            for n in (1, 16):
                session.reset()
                found = [session.prefill(TEXT[:, :n])]
                found += [session.decode(TEXT[:, i : i + 1]) for i in range(n, SLOTS)]
                np.testing.assert_allclose(
                    np.concatenate(found, 1), expected, rtol=0, atol=1e-5
                )


def test_the_plain_model_gives_other_numbers(tmp_path: Path) -> None:
    model, methods = HalfLinear(), simple_methods()
    with torch.no_grad():
        plain = model.plain_reference(torch.from_numpy(TEXT)).numpy()
    with (
        opened(model, methods, tmp_path, recipe=FLOAT16) as program,
        program.session() as session,
    ):
        assert np.abs(session.prefill(TEXT) - plain).max() > 1e-5


def test_each_row_of_a_batch_is_as_if_alone(tmp_path: Path, backend: str) -> None:
    specs = [
        StateSpec("[kv]", axis=2, capacity=Dim("capacity", 4, 64), batch=BATCH),
        StateSpec("position", batch=BATCH),
    ]
    rows = np.stack([TEXT[0, :20], TEXT[0, 20:40]])
    with (
        opened(
            HalfRows(), row_methods(), tmp_path, states=specs, recipe=FLOAT16
        ) as program,
        program.session(batch=2) as session,
    ):
        found = [session.prefill(rows[:, :9])]
        found += [session.decode(rows[:, i : i + 1]) for i in range(9, 20)]
    for row, tokens in zip(np.concatenate(found, 1), rows, strict=True):
        with torch.no_grad():
            alone = HalfLinear().reference(torch.from_numpy(tokens.copy())[None])
        np.testing.assert_allclose(row, alone[0].numpy(), rtol=0, atol=1e-5)


@pytest.mark.exhaustive
def test_rows_of_different_lengths_are_as_if_alone(
    tmp_path: Path, backend: str
) -> None:
    text = np.random.default_rng(8).integers(0, RAGGED_VOCAB, (2, 12))
    options = {"states": ragged_specs(), "recipe": FLOAT16}
    with opened(Ragged(), ragged_methods(), tmp_path, **options) as program:
        with program.session(batch=2) as session:
            session.prefill(text[:, :9], np.array([9, 4]))
            found = session.decode(text[:, 9:10], np.array([True, False]))
            held = [np.array(session.state["layers.0.k"][row]) for row in (0, 1)]
        with program.session(batch=1) as alone:
            alone.prefill(text[:1, :9], np.array([9]))
            expected = alone.decode(text[:1, 9:10], np.array([True]))
            mine = np.array(alone.state["layers.0.k"][0])
    assert held[0].dtype == np.float16
    # Rows that round the other way in another batch differ by the last bit.
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-2)
    np.testing.assert_allclose(held[0], mine, rtol=2e-3, atol=1e-5)
    assert held[1][:, 3].any()
    assert not held[1][:, 4:].any()


@every(2, "name")
@pytest.mark.parametrize("name", PLAIN_RECIPES)
def test_it_goes_with_every_recipe(tmp_path: Path, name: str) -> None:
    results, keys = [], []
    for dtype in ("float32", "float16"):
        recipe, path = load_recipe(name, cache=dtype), tmp_path / f"{dtype}.kvc"
        compile_program(Linear().eval(), simple_methods(), recipe).save(path)
        with load(path) as program, program.session() as session:
            assert session.state["k"].dtype == dtype
            outputs = [session.prefill(TEXT[:, :30])]
            outputs += [session.decode(TEXT[:, i : i + 1]) for i in range(30, 40)]
            results.append(np.concatenate(outputs, 1))
            keys.append(np.array(session.state["k"]))
    np.testing.assert_allclose(*results, rtol=0, atol=0.05)
    assert np.array_equal(keys[0].astype(np.float16), keys[1])


def test_a_key_that_is_too_great_becomes_infinite(tmp_path: Path, backend: str) -> None:
    model = HalfLinear()
    with torch.no_grad():
        model.kv.weight[0] = 0.0
        model.kv.bias[0] = 70000.0
    with (
        opened(model, simple_methods(), tmp_path, recipe=FLOAT16) as program,
        program.session() as session,
    ):
        session.prefill(TEXT[:, :2])
        assert np.isposinf(session.state["k"][0, 0, :2, 0]).all()
