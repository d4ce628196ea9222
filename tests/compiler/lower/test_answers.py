"""A backend of others that answers nonsense is named, and what it said."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.compiler.backends import BACKENDS
from kvc.compiler.backends.xnnpack import Xnnpack
from kvc.recipes import Recipe
from kvc.schema.errors import BadBackend

RECIPE = Recipe("toy", "", "", "float32", "float32", "float32", "toy")


def compile_with(monkeypatch, **methods):
    backend = type("Toy", (Xnnpack,), {"name": "toy", **methods})
    monkeypatch.setitem(BACKENDS, "toy", backend)
    forward = Method("forward", (torch.ones(2, 4),))
    return compile_program(nn.Linear(4, 4).eval(), [forward], RECIPE)


def test_an_answer_of_the_right_form_is_taken(monkeypatch):
    assert len(compile_with(monkeypatch).program.delegates) == 1


@pytest.mark.parametrize("found", [None, 3, {-1}, {99}, {"a"}, [True], [0.0], [[0]]])
def test_nodes_that_are_none_are_refused(monkeypatch, found):
    with pytest.raises(BadBackend, match="backend toy, supports, method forward") as e:
        compile_with(monkeypatch, supports=lambda self, method: found)
    assert e.value.facts["backend"] == "toy"


def changed(**fields):
    """Return a `lower` whose answers have some fields replaced."""

    def lower(self, *arguments):
        found = Xnnpack.lower(self, *arguments)
        return {name: [replace(p, **fields) for p in found[name]] for name in found}

    return lower


@pytest.mark.parametrize(
    ("lower", "expected"),
    [
        (lambda *_: None, "expected a mapping"),
        (lambda *_: [], "expected a mapping"),
        (lambda *_: {}, "a key for each of the methods forward, found none"),
        (lambda *_: {"forward": [], "other": []}, "found forward, other"),
        (lambda *_: {"forward": None}, "expected a Lowered for each of 1, found None"),
        (lambda *_: {"forward": []}, "expected a Lowered for each of 1, found 0"),
        (
            lambda *_: {"forward": [b"", b""]},
            "expected a Lowered for each of 1, found 2",
        ),
        (lambda *_: {"forward": [b""]}, "each item a Lowered, found b''"),
        (changed(payload="text"), "payload of bytes"),
        (changed(memory="opaque"), "memory a MemoryKind"),
        (changed(workspace_nbytes=-1), "workspace_nbytes a count"),
        (changed(tail_nbytes=1.5), "tail_nbytes a count"),
    ],
)
def test_answers_that_are_none_are_refused(monkeypatch, lower, expected):
    with pytest.raises(BadBackend, match=expected):
        compile_with(monkeypatch, lower=lower)
