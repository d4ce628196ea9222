"""Branches and loops give what eager gives, and leave states as eager does."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from branching_models import NO, YES, Branches, Kept, Loops, N
from daily import RARELY
from state_runs import agree, opened
from torch import Tensor, nn

from kvc.compiler import Method

Calls = Sequence[tuple[Tensor, ...]]
X, ROW = torch.arange(12.0).reshape(3, 4) / 4 - 1, torch.linspace(-1, 1, 4)[None]
AT, ONE = torch.tensor([5, 0, 2]), torch.tensor([6])


def number(value: int) -> Tensor:
    return torch.tensor(value)


def both_ways(*rest: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for p in (YES, NO):
        yield (p, *rest)


def sizes() -> Iterator[Tensor]:
    yield from (X, X[:1], torch.cat([X, X])[:5] * 2)


BRANCHES = {
    "consecutive": [(p, x) for p in (YES, NO) for x in sizes()],
    "nested": [(p, q, x) for p in (YES, NO) for q in (YES, NO) for x in sizes()],
    "captured": [(p, x) for p in (YES, NO) for x in sizes()],
    "transposed": [(p, x) for p in (YES, NO) for x in sizes()],
}
LOOPS = {
    "until": [(number(k), x) for k in (3, 0, 1) for x in sizes()],
    "swapped": [(number(k), X[0], X[1]) for k in (1, 0, 2, 5)],
    "twice": [(number(k), X[0], X[1]) for k in (1, 0, 2)],
    "scanned": [(X[0], x) for x in sizes()],
    "mapped": [(x, X[0]) for x in sizes()],
    "branching": [(number(k), X) for k in (0, 1, 4)],
}
KEPT = {
    "one": [(YES, X, AT), (NO, X, AT), (YES, X[:1], ONE), (NO, X[:1], ONE)],
    "chain": [
        (p, q, ROW * (i + 1), number(k)[None])
        for i, k in enumerate((1, 7))
        for p in (YES, NO)
        for q in (YES, NO)
    ],
    "reshaped": [*both_ways(X[1]), (YES, X[2])],
    "viewed": [*both_ways(X[1]), (YES, X[2])],
    "filled": [(YES,), (YES,), (NO,), (YES,)],
    "kept_old": [(YES, X, AT), (NO, X, AT), (YES, X * 2, AT + 1)],
    "both": [(YES, X, AT), (NO, X, AT), (YES, X * 2, AT + 1)],
    "looped": [(number(k), ROW) for k in (3, 0, 1, 8)],
    "gathered": [(x[:, None],) for x in sizes()],
}
DYNAMIC = {
    "consecutive": ("x",), "nested": ("x",), "captured": ("x",), "transposed": ("x",),
    "until": ("x",), "scanned": ("xs",), "mapped": ("xs",), "gathered": ("xs",),
    "one": ("x", "at"),
}  # fmt: skip


def methods(calls: Mapping[str, Calls]) -> list[Method]:
    return [
        Method(
            name,
            args=given[0],
            dynamic={argument: {0: N} for argument in DYNAMIC.get(name, ())},
        )
        for name, given in calls.items()
    ]


# torch traces a body several times, which takes a second or two each.
QUICK = {"nested", "captured", "until", "scanned", "one", "chain", "looped"}


MODELS = {Branches: BRANCHES, Loops: LOOPS, Kept: KEPT}
EACH = [
    pytest.param(model, name, marks=[] if name in QUICK else RARELY)
    for model, calls in MODELS.items()
    for name in calls
]


def check(model: type[nn.Module], calls: Mapping[str, Calls], folder: Path) -> None:
    """Assert that all calls, and all in the other order, do as eager does."""
    every = [(name, *args) for name, given in calls.items() for args in given]
    with (
        opened(model(), methods(calls), folder) as program,
        program.session() as session,
    ):
        agree(session, model().eval(), every)
        session.reset()
        agree(session, model().eval(), every[::-1])


@pytest.mark.parametrize(("model", "name"), EACH)
def test_a_method_does_as_eager_does(
    model: type[nn.Module], name: str, tmp_path: Path
) -> None:
    check(model, {name: MODELS[model][name]}, tmp_path)


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=RARELY)])
@pytest.mark.parametrize("model", MODELS)
def test_methods_of_one_program_do_as_eager_does(
    model: type[nn.Module], quick: bool, tmp_path: Path
) -> None:
    calls = {n: c for n, c in MODELS[model].items() if (n in QUICK) is quick}
    check(model, calls, tmp_path)
