"""Bundles against eager: prefill, then decode, logits compared at every step.

fp32 runs the same torch kernels as eager in the same order, so it is equal bit for
bit. A control corrupts one row of the cache and must fail the same comparison.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from daily import only
from quantized_decoder import quantized_decoder
from xnnpack_graphs import library_or_skip

from kvc.compiler import ModelSpec, compile_program
from kvc.compiler.models import BUILTIN
from kvc.compiler.models.decoder import Decoder
from kvc.recipes import known_recipes, load_recipe
from kvc.runtime import Session, load

PROMPT = np.frombuffer(b"def read_lines(path):\n    with open(path) as f:", np.uint8)
STEPS = 64


@pytest.fixture(scope="module")
def demo() -> ModelSpec:
    return BUILTIN["demo"]()


@pytest.fixture(scope="module")
def bundle_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Path]:
    """Return what gives the path of the demo in a recipe, or of one method of it."""
    folder = tmp_path_factory.mktemp("bundles")
    spec = BUILTIN["demo"]()  # eager calls write the buffers of the other one
    methods = [m for m in spec.methods if m.role in ("prefill", "decode")]

    @cache
    def made(recipe: str, only: str = "") -> Path:
        path = folder / f"{recipe}{only}.kvc"
        chosen = [m for m in methods if only in ("", m.name)]
        compile_program(spec.model, chosen, recipe).save(path)
        return path

    return made


def session_logits(
    session: Session, prompt: np.ndarray, steps: int
) -> list[np.ndarray]:
    """Return the logits after the prompt and after each of `steps` greedy tokens."""
    logits = [session.prefill(prompt[None].astype(np.int64))]
    for _ in range(steps):
        logits.append(session.decode(logits[-1].argmax(-1)[None]))
    return logits


def eager_logits(
    model: Decoder, prompt: np.ndarray, tokens: list[int]
) -> list[np.ndarray]:
    """Return the logits after the prompt and after each of the tokens."""
    model.position.zero_()
    with torch.no_grad():
        logits = [model.prefill(torch.from_numpy(prompt[None].astype(np.int64)))]
        logits += [model.decode(torch.tensor([[token]])) for token in tokens]
    return [row.numpy() for row in logits]


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64])
def test_prefill_of_any_length_equals_eager(
    demo: ModelSpec, bundle_of: Callable[..., Path], length: int
) -> None:
    prompt = np.resize(PROMPT, length)
    with load(bundle_of("fp32", "prefill")) as program, program.session() as session:
        got = session_logits(session, prompt, 0)
    assert np.array_equal(got[0], eager_logits(demo.model, prompt, [])[0])


def test_fp32_equals_eager_bit_for_bit(
    demo: ModelSpec, bundle_of: Callable[..., Path]
) -> None:
    with load(bundle_of("fp32")) as program, program.session() as session:
        got = session_logits(session, PROMPT, STEPS)
    tokens = [int(row.argmax()) for row in got[:-1]]
    expected = eager_logits(demo.model, PROMPT, tokens)
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_corrupted_cache_row_is_noticed(
    demo: ModelSpec, bundle_of: Callable[..., Path]
) -> None:
    with load(bundle_of("fp32")) as program, program.session() as session:
        got = session_logits(session, PROMPT, STEPS)
    tokens = [int(row.argmax()) for row in got[:-1]]
    model = demo.model
    eager_logits(model, PROMPT, [])
    model.layers[2].attn.v_cache[0, 1, 7] += 0.01
    with torch.no_grad():
        rest = [model.decode(torch.tensor([[token]])).numpy() for token in tokens]
    assert not any(np.array_equal(a, b) for a, b in zip(got[1:], rest, strict=True))


def test_prefill_in_pieces_equals_prefill_at_once(
    bundle_of: Callable[..., Path],
) -> None:
    tokens = PROMPT[None].astype(np.int64)
    with load(bundle_of("fp32")) as program, program.session() as session:
        whole = session.prefill(tokens)
        session.reset()
        session.prefill(tokens[:, :5])
        session.decode(tokens[:, 5:6])
        pieces = session.prefill(tokens[:, 6:])
    np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-4)


def test_xnnpack_fp32_on_the_reference_equals_eager(
    demo: ModelSpec, bundle_of: Callable[..., Path]
) -> None:
    path = bundle_of("xnnpack_fp32")
    with load(path, reference=True) as program, program.session() as session:
        got = session_logits(session, PROMPT, 24)
    tokens = [int(row.argmax()) for row in got[:-1]]
    expected = eager_logits(demo.model, PROMPT, tokens)
    for a, b in zip(got, expected, strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@only(recipe=["xnnpack_q4", "cpu_q8"])
@pytest.mark.parametrize("recipe", ["xnnpack_q8", "xnnpack_q4", "cpu_q8"])
def test_a_quantized_recipe_equals_its_slow_reference(
    demo: ModelSpec, tmp_path: Path, recipe: str
) -> None:
    chosen = replace(load_recipe(recipe), basis="model")
    fresh = BUILTIN["demo"]()  # eager calls write the buffers of the other one
    compile_program(fresh.model, fresh.methods, chosen).save(tmp_path / "m.kvc")
    slow, errors = quantized_decoder(demo.model, recipe), list[float]()
    for prompt in (PROMPT, PROMPT[:1], PROMPT[2:4]):
        bundle = load(tmp_path / "m.kvc", reference=True)
        with bundle as program, program.session() as session:
            got = session_logits(session, prompt, 24)
        tokens = [int(row.argmax()) for row in got[:-1]]
        expected = eager_logits(slow, prompt, tokens)
        errors += [
            np.abs(a - b).max() / np.abs(b).max()
            for a, b in zip(got, expected, strict=True)
        ]
    # From the first rounding on that falls the other way, an activation is off by one
    # step; where that is depends on the processor.
    assert min(errors) <= 1e-5
    assert max(errors) <= 0.03


XNNPACK = [recipe for recipe in known_recipes() if recipe.startswith("xnnpack")]


@only(recipe=["xnnpack_fp32", "xnnpack_q8"])
@pytest.mark.parametrize("recipe", XNNPACK)
def test_the_library_and_the_reference_give_nearly_the_same(
    bundle_of: Callable[..., Path], recipe: str
) -> None:
    """Where a rounding falls the other way, an activation is off by one step."""
    library_or_skip()
    path = bundle_of(recipe)
    with load(path, reference=True) as program, program.session() as session:
        expected = session_logits(session, PROMPT, 24)
    with load(path, reference=False) as program, program.session() as session:
        got = [session.prefill(PROMPT[None].astype(np.int64))]
        got += [session.decode(row.argmax(-1)[None]) for row in expected[:-1]]
    bound = 1e-5 if recipe == "xnnpack_fp32" else 0.03
    for a, b in zip(got, expected, strict=True):
        assert np.abs(a - b).max() <= bound * np.abs(b).max()
        assert not np.array_equal(a, b)


def test_quantizing_changes_logits_a_little(
    demo: ModelSpec, bundle_of: Callable[..., Path]
) -> None:
    eager = eager_logits(demo.model, PROMPT, [])[0]
    wanted = {"bf16": 0.1, "xnnpack_q8": 0.1, "xnnpack_q4": 0.3, "cpu_q8": 0.05}
    for recipe, most in wanted.items():
        path = bundle_of(recipe)
        with load(path, reference=True) as program, program.session() as session:
            got = session_logits(session, PROMPT, 0)[0]
        assert 0 < np.abs(got - eager).max() < most * np.abs(eager).max(), recipe


def test_two_sessions_share_weights_and_nothing_else(
    bundle_of: Callable[..., Path],
) -> None:
    with (
        load(bundle_of("xnnpack_q8"), reference=True) as program,
        program.session() as one,
        program.session() as two,
    ):
        alone = session_logits(one, PROMPT, 8)
        one.reset()
        mixed = [one.prefill(PROMPT[None].astype(np.int64))]
        two.prefill(PROMPT[None, ::-1].astype(np.int64))
        for _ in range(8):
            mixed.append(one.decode(mixed[-1].argmax(-1)[None]))
            two.decode(mixed[-1].argmax(-1)[None])
    assert all(np.array_equal(a, b) for a, b in zip(alone, mixed, strict=True))
