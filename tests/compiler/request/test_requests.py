"""What is given to compile_program is checked before anything is traced."""

import numpy as np
import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.compiler.models import BUILTIN
from kvc.schema.errors import CompileError

X = torch.zeros(3)
SEQ = Dim("seq", 1, 8)
F = "method forward"


class Doubles(nn.Module):
    def forward(self, x):
        return x * 2


def refusal(methods, model=None, **options):
    with pytest.raises(CompileError) as caught:
        compile_program(model or Doubles(), methods, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        (
            Method("forward", (X,)),
            "sequence of kvc.compiler.Method, found a Method; gi",
        ),
        (
            ["forward"],
            "methods[0]: expected a kvc.compiler.Method, found a value of ty",
        ),
        ("forward", "methods: expected a sequence of kvc.compiler.Method, found a val"),
        ([Method(Doubles.forward)], "the name of a method: expected text, found a val"),
        ([Method("f", (X,))], "Doubles has no method of this name; it has forward"),
        (
            [Method("forward", role="chat")],
            "role: expected 'encode', 'prefill', 'decode",
        ),
    ],
)
def test_methods_are_a_sequence_of_declarations(methods, text):
    assert text in refusal(methods)


@pytest.mark.parametrize("args", [X, np.zeros(3), 3, None, "abc"])
def test_examples_that_are_no_tuple_are_refused_with_the_remedy(args):
    message = refusal([Method("forward", args=args)])
    assert message.startswith(f"{F}, args: expected a tuple of examples, found a ")
    assert message.endswith("; give args=(x,) for one argument")


def test_a_dict_of_examples_is_for_kwargs():
    assert "; give kwargs={...}" in refusal([Method("forward", args={"x": X})])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kwargs": [X]}, 'kwargs: expected a mapping such as {"x": x}, found a value'),
        ({"kwargs": {1: X}}, "kwargs, key 1: expected text, found a value of type int"),
        ({"dynamic": [SEQ]}, 'dynamic: expected a mapping such as {"x": {1: Dim("seq'),
        ({"dynamic": {"x": SEQ}}, "dynamic['x']: expected a mapping from axes to Dims"),
        ({"dynamic": {"x": {"0": SEQ}}}, "dynamic['x'], axis '0': expected a number"),
        (
            {"dynamic": {"x": {0: torch.export.Dim("n")}}},
            "dynamic['x'][0]: expected a kvc.compiler.Dim, found a value of type Dim",
        ),
        ({"carry": ["x"]}, "carry: expected a mapping such as {"),
        ({"position": None}, "position: expected the name of an input, found a value"),
    ],
)
def test_fields_of_a_declaration_are_checked(options, text):
    assert f"{F}, {text}" in refusal([Method("forward", (X,), **options)])


def test_axes_count_from_the_front():
    message = refusal([Method("forward", (X,), dynamic={"x": {-1: SEQ}})])
    assert "dynamic axis -1 of 'x', which has 1 dims; axes count from 0" in message


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"states": StateSpec("k", batch=SEQ)},
            "found a StateSpec; give [StateSpec(...",
        ),
        (
            {"states": ["k"]},
            "states[0]: expected a kvc.compiler.StateSpec, found a val",
        ),
        ({"metadata": [1]}, "metadata: expected a mapping, found a value of type list"),
        ({"metadata": {1: 2}}, "metadata: the key 1 is not text"),
        ({"files": ["a"]}, "files: expected a mapping, found a value of type list"),
        ({"max_copy_bytes": 3}, "max_copy_bytes: expected a mapping, found a value of"),
        (
            {"max_copy_bytes": {"forward": "3"}},
            "expected an int of 0 or more, found '3'",
        ),
    ],
)
def test_other_arguments_are_checked(options, text):
    assert text in refusal([Method("forward", (X,))], **options)


@pytest.mark.parametrize("model", [Doubles, lambda x: x, [1]])
def test_a_model_is_a_module(model):
    message = refusal([Method("forward", (X,))], model)
    assert message.startswith("the model: expected a torch.nn.Module, found ")


def test_a_model_spec_is_refused_with_what_to_give():
    spec = BUILTIN["demo"]()
    for given in ((spec,), (spec, spec.methods)):
        with pytest.raises(CompileError, match="found a ModelSpec; pass its fields"):
            compile_program(*given, recipe="cpu_fp32")


def test_examples_in_a_list_are_taken():
    assert compile_program(Doubles(), [Method("forward", args=[X])]).program.methods


def test_a_sparse_example_is_refused():
    message = refusal([Method("forward", (torch.eye(3).to_sparse(),))])
    assert (
        "the argument x is of type tensor, but sparse, nested or quantized" in message
    )


class Odd(nn.Module):
    """Has what cannot be compiled at all."""

    def __init__(self, part):
        super().__init__()
        if isinstance(part, nn.Module):
            self.part = part
        else:
            self.register_buffer("part", part)

    def forward(self, x):
        return x * 1


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda: torch.jit.script(nn.ReLU()), "part is compiled by torch.jit"),
        (lambda: nn.LazyLinear(3), "part.weight has no shape yet; call the model once"),
        (lambda: torch.eye(3).to_sparse(), "part is sparse or quantized"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_cannot_be_compiled_at_all_is_named(part, message):
    with pytest.raises(CompileError, match=message):
        compile_program(Odd(part()), [Method("forward", (torch.ones(3),))])


def test_a_method_of_pythons_own_is_refused():
    with pytest.raises(CompileError, match="method __call__: a method of Python's own"):
        compile_program(Odd(torch.ones(3)), [Method("__call__", (torch.ones(3),))])
