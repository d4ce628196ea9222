import re

import pytest
import torch
from golden import FOLDER
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.trace.sources import place_of_failure, source_of, words_of
from kvc.schema.errors import CaptureError, CompileError


def test_the_innermost_line_of_the_users_code_is_named():
    trace = (
        f'  File "{__file__}", line 3, in step\n    y\n'
        f'  File "{__file__}", line 7, in helper\n    x\n'
        f'  File "{torch.nn.functional.__file__}", line 90, in linear\n'
    )
    assert source_of({"stack_trace": trace}) == f"{__name__}:7"


def test_torchs_own_line_stands_where_there_is_no_other():
    trace = f'  File "{torch.nn.functional.__file__}", line 90, in linear\n'
    assert source_of({"stack_trace": trace}) == "torch.nn.functional:90"


def test_a_file_that_is_no_module_gives_its_bare_name():
    trace = f'  File "{FOLDER}/script.py", line 4, in step\n'
    assert source_of({"stack_trace": trace}) == "script:4"


def test_the_module_path_follows_the_line():
    trace = f'  File "{FOLDER}/script.py", line 4, in step\n'
    stack = {"a": ("", "Model"), "b": ("layers.0.attn", "Attention")}
    meta = {"stack_trace": trace, "nn_module_stack": stack}
    assert source_of(meta) == "script:4 (layers.0.attn)"


def test_nothing_known_is_the_empty_text():
    assert source_of({}) == ""


X = torch.ones(4)


class Mistakes(nn.Module):
    def raises(self, x):
        raise ValueError("needs a batch")

    def unknown(self, x):
        return x * self.missing

    def shapes(self, x):
        return x @ torch.ones(3, 3)

    def in_a_body(self, x):
        return torch.cond(x.sum() > 0, self.shapes, torch.neg, (x,))

    def asks(self, x):
        return x if x.sum() > 0 else -x

    def equal(self, x):
        return x * torch.equal(x, x)

    def row_lengths(self, x):
        for _ in range(x[0]):
            x = x + 1
        return x

    def arrays(self, x):
        return torch.from_numpy(x.numpy() * 2)

    def gathers(self, x):
        return torch.tensor([x[0], x[1]])

    def on_cuda(self, x):
        return x.to("cuda")

    def gradients(self, x):
        return torch.autograd.grad((x * x).sum(), x)

    def turned(self, x):
        start, more = (x[:1], torch.outer(x, x)), lambda i, _: (i < 9).all()
        return while_loop(more, lambda i, y: (i + 1, y.t().clone()), start)[1]

    def endless(self, x):
        return self.endless(x)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("raises", ["it raises ValueError: needs a batch"]),
        ("unknown", ["AttributeError: 'Mistakes' object has no attribute 'missing'"]),
        ("shapes", ["torch says RuntimeError: a and b must have same reduction dim"]),
        ("asks", ["it asks for the value of a tensor", "use torch.where"]),
        ("equal", ["it asks for the value of a tensor", "aten.equal"]),
        (
            "row_lengths",
            ["it asks for the value of a tensor", "TypeError: only integer"],
        ),
        ("arrays", ["it makes a numpy array of a tensor", "use torch's functions"]),
        ("gathers", ["it makes a tensor from values of others", "torch.stack"]),
        ("on_cuda", ["bundles run on the CPU; leave .cuda() and device=... out"]),
        ("gradients", ["it computes gradients, which a bundle does not"]),
        (
            "turned",
            ["keep their shape, dtype and order in memory", "_format) of views"],
        ),
        ("endless", ["it calls itself without an end"]),
    ],
)
def test_a_mistake_is_told_with_its_line_and_a_remedy(name, texts):
    with pytest.raises(CaptureError) as caught:
        compile_program(Mistakes(), [Method(name, (X,))])
    message = str(caught.value)
    start = rf"cannot capture method {name} at (\S*\.)?test_sources:(\d+): "
    match = re.match(start, message)
    assert match, message
    first = getattr(Mistakes, name).__code__.co_firstlineno
    assert first < int(match[2]) <= first + 3
    assert all(text in message for text in texts)
    assert "\n" not in message


def test_a_mistake_in_a_body_is_told_rather_than_the_body():
    with pytest.raises(CaptureError, match=r"torch says RuntimeError: a and b must"):
        compile_program(Mistakes(), [Method("in_a_body", (X,))])


def test_an_error_without_text_is_told_by_its_kind():
    assert words_of(KeyError()) == "torch says KeyError"
    assert place_of_failure(KeyError()) == ""


class OddSizes(nn.Module):
    def product(self, x):
        return x @ x

    def power(self, x):
        return torch.zeros(x.shape[0] ** 2) + x.sum()

    def quotient(self, x):
        return torch.zeros(x.shape[0] // x.shape[1]) + x.sum()


@pytest.mark.parametrize("name", ["product", "power", "quotient"])
def test_sizes_have_the_names_of_their_dims(name):
    dims = {"x": {0: Dim("height", 2, 64), 1: Dim("width", 2, 64)}}
    method = Method(name, (torch.ones(6, 8),), dynamic=dims)
    with pytest.raises(CompileError) as caught:
        compile_program(OddSizes(), [method])
    assert "height" in str(caught.value)
    assert not re.search(r"\bs\d+\b", str(caught.value))
