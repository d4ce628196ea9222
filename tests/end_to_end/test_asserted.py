"""What a method asserts of its tensors is checked when it runs, as in eager."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import KernelFailed, Poisoned


class Asserting(nn.Module):
    """Asserts something with and without words, of a state, and in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def plain(self, x: Tensor) -> Tensor:
        torch._assert_async((x != 5).all())
        torch._assert_async((x > 0).all(), "x is positive")
        return x * 2

    def branch(self, x: Tensor) -> Tensor:
        def large(x: Tensor) -> Tensor:
            torch._assert_async((x < 5).all(), "x is below 5")
            return x * 2

        return torch.cond(x.sum() > 3, large, lambda x: x + 1, (x,))

    def one_hot(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(x.long(), 4)

    def add(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        torch._assert_async((self.total < 6).all(), "the total is below 6")
        return self.total.clone()


@pytest.fixture(scope="module", params=["fp32", "cpu_fp32"])
def path(request, tmp_path_factory):
    names = ("plain", "branch", "one_hot", "add")
    methods = [Method(name, args=(torch.ones(3),)) for name in names]
    made = tmp_path_factory.mktemp("asserting") / "asserting.kvc"
    compile_program(Asserting(), methods, request.param).save(made)
    return made


@pytest.mark.parametrize(
    ("method", "fine", "wrong", "text"),
    [
        ("plain", 1, -1, "x is positive"),
        ("plain", 1, 5, "has to be true"),
        ("branch", 2, 7, "x is below 5"),
        ("branch", -9, 7, "x is below 5"),
        ("one_hot", 3, 4, "smaller than num_classes"),
        ("one_hot", 3, -1, "non-negative"),
    ],
)
def test_what_is_not_so_is_an_error_with_its_words(path, method, fine, wrong, text):
    model = Asserting()
    with load(path) as program, program.session() as session:
        expected = getattr(model, method)(torch.full((3,), float(fine)))
        got = session.call(method, np.full(3, fine, np.float32))
        np.testing.assert_array_equal(got, expected)

        with pytest.raises(KernelFailed, match=text):
            session.call(method, np.full(3, wrong, np.float32))


def test_a_state_that_was_written_before_is_not_used_any_more(path):
    with load(path) as program, program.session() as session:
        session.add(np.full(3, 4, np.float32))
        with pytest.raises(KernelFailed, match="the total is below 6"):
            session.add(np.full(3, 4, np.float32))

        with pytest.raises(Poisoned):
            session.add(np.full(3, -9, np.float32))


def test_a_session_that_can_go_back_does(path):
    with load(path) as program, program.session(transactional=True) as session:
        session.add(np.full(3, 4, np.float32))
        with pytest.raises(KernelFailed, match="the total is below 6"):
            session.add(np.full(3, 4, np.float32))

        assert session.add(np.ones(3, np.float32)).tolist() == [5, 5, 5]
