"""Bundles with bound lists, and one session of them in Python beside one in C."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from libkvc import CBundle, CSession
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.request.spec import StateSpec
from kvc.recipes import load_recipe
from kvc.runtime import Program, Session, load
from kvc.runtime.bound_lists import bind_program
from kvc.schema.errors import NoPosition

DIM, SLOTS, VOCAB = 4, 16, 11


def save(
    model: nn.Module,
    methods: Sequence[Method],
    path: Path,
    *,
    recipe: str = "cpu_fp32",
    cache: str | None = None,
    **options: object,
) -> Path:
    """Compile a model, and save its bundle with bound lists."""
    chosen = recipe if cache is None else load_recipe(recipe, cache=cache)
    bundle = compile_program(model.eval(), methods, chosen, **options)
    bounds, refused = bind_program(bundle.program)
    assert not refused, refused
    bundle.with_bounds(bounds).save(path)
    return path


def flat(results: object) -> list[np.ndarray]:
    """Return the arrays of nested results, in order."""
    if isinstance(results, np.ndarray):
        return [results]
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, list | tuple):
        return [array for one in results for array in flat(one)]
    return []


class Pair:
    """A session of Python and one of C, which do the same."""

    def __init__(self, ours: Session, theirs: CSession) -> None:
        self.ours, self.theirs = ours, theirs

    def call(self, name: str, *args: np.ndarray | None) -> list[np.ndarray]:
        """Run a method in both, and compare results, states and positions bit by bit.

        None leaves out row lengths.
        """
        given = [arg for arg in args if arg is not None]
        expected = flat(self.ours.call(name, *given))
        found = self.theirs.call(name, *args)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()
        self.compare()
        return found

    def compare(self) -> None:
        """Compare all states and positions."""
        for name, content in self.ours.state.items():
            assert self.theirs.state(name).tobytes() == content.tobytes(), name
        for number, rows in enumerate(self.ours.positions.values()):
            assert self.theirs.position(number) == rows.tolist()
        try:
            rewindable = self.ours.rewindable.tolist()
        except Exception:  # what cannot go back is compared by those who ask for it
            return
        assert self.theirs.rewindable() == rewindable

    def position(self) -> int:
        try:
            return int(self.ours.position.max())
        except NoPosition:
            return -1

    def rewind(self, *counts: int) -> None:
        self.ours.rewind(counts[0] if len(counts) == 1 else np.array(counts))
        self.theirs.rewind(*counts)
        self.compare()

    def reset(self) -> None:
        self.ours.reset()
        self.theirs.reset()
        self.compare()

    def fork(self) -> "Pair":
        return Pair(self.ours.fork(), self.theirs.fork())

    def crossed(self, program: Program, bundle: CBundle, folder: Path) -> "Pair":
        """Save both, and return sessions that each have read the other's file."""
        self.ours.save(folder / "ours.kvs")
        self.theirs.save(folder / "theirs.kvs")
        assert (folder / "ours.kvs").read_bytes() == (
            folder / "theirs.kvs"
        ).read_bytes()
        return Pair(
            program.restore(folder / "theirs.kvs"), bundle.restore(folder / "ours.kvs")
        )

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@contextmanager
def both(path: Path) -> Iterator[tuple[Program, CBundle]]:
    """Open a bundle in Python and in C."""
    with load(path) as program, CBundle(path) as bundle:
        yield program, bundle


@contextmanager
def pair(path: Path, capacity: int | None = None, **sizes: int) -> Iterator[Pair]:
    """Open a session in Python and one in C."""
    with both(path) as (program, bundle):
        ours = program.session(capacity=capacity, **sizes)
        made = Pair(ours, bundle.session(capacity=capacity or 0, **sizes))
        try:
            yield made
        finally:
            made.close()


class Speaker(nn.Module):
    """An encoder whose rows a decoder attends to; each has a cache and a position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, DIM)
        for name in ("heard", "said"):
            self.register_buffer(name, torch.zeros(1, 1, SLOTS, DIM))
            self.register_buffer(f"{name}_position", torch.zeros(1, dtype=torch.int64))

    def write(self, name: str, rows: Tensor) -> Tensor:
        cache, position = getattr(self, name), getattr(self, f"{name}_position")
        start = position.clone()
        cache.copy_(torch.ops.kvc.cache_update(cache, rows, start))
        position.add_(rows.shape[2])
        return start + rows.shape[2]

    def hear(self, rows: Tensor) -> Tensor:
        self.write("heard", torch.tanh(rows))
        return self.heard * 1.0

    def say(self, tokens: Tensor) -> Tensor:
        rows = self.embed(tokens)[:, None]
        attend = torch.ops.kvc.attention
        end = self.write("said", rows)
        y = attend(rows, self.said, self.said, end)
        y = attend(y, self.heard, self.heard, self.heard_position, causal=False)
        return y[:, 0, -1] @ self.embed.weight.T


def speaker(path: Path) -> Path:
    """Save a bundle of `Speaker`."""
    heard, tokens = torch.ones(1, 1, 3, DIM), torch.arange(3)[None]
    return save(
        Speaker(),
        [
            Method(
                "hear", (heard,), dynamic={"rows": {2: Dim("n", 2, 8)}}, role="encode"
            ),
            Method("say", (tokens,), dynamic={"tokens": {1: Dim("seq", 2, 12)}}),
        ],
        path,
    )


def ragged_bundle(kind: str, path: Path) -> Path:
    """Save a bundle of one of `RAGGED`."""
    from ragged_models import MOST, RAGGED, ragged_methods, ragged_specs

    told, rings = kind == "told", "rings" in kind
    return save(
        RAGGED[kind](),
        ragged_methods(told),
        path,
        states=ragged_specs(told, rings),
        max_length=MOST if rings else None,
    )


def kind_bundle(name: str, path: Path) -> Path:
    """Save a bundle of one of the kinds of `session_kinds`."""
    from session_kinds import KINDS, RINGS

    kind = {**KINDS, **RINGS}[name]
    cache = next((one for one in ("int8", "float16") if one in name), None)
    states: list[StateSpec] = list(kind.states)
    options = {"states": states} if states else {}
    return save(kind.model(), list(kind.methods), path, cache=cache, **options)
