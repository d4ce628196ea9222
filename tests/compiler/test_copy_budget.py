import pytest
import torch
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.schema.errors import CompileError, CopyBudgetExceeded


class Shift(nn.Module):
    """Keeps the last eight numbers; the old ones move, which takes a copy."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(8))

    def push(self, x):
        self.last.copy_(torch.cat([self.last[1:], x]))
        return self.last * 2

    def add(self, x):
        self.last.add_(x)
        return self.last * 2


METHODS = [Method("push", args=(torch.ones(1),)), Method("add", args=(torch.ones(1),))]


def compile_within(**budget):
    return compile_program(Shift(), METHODS, max_copy_bytes=budget)


def test_a_budget_that_holds_changes_nothing():
    assert compile_within(push=32, add=0).program == compile_within().program


def test_a_copy_beyond_the_budget_fails_the_build_and_is_named():
    with pytest.raises(CopyBudgetExceeded) as error:
        compile_within(push=31)
    facts = error.value
    assert (facts.method, facts.nbytes, facts.allowed) == ("push", 32, 31)
    assert "  last: 32 bytes at " in facts.listing
    assert "test_copy_budget:" in facts.listing
    assert "the old value is still read when aten::cat" in facts.listing


def test_a_budget_for_no_method_or_below_zero_is_refused():
    with pytest.raises(CompileError, match="no method 'pull'; methods: push, add"):
        compile_within(pull=0)
    with pytest.raises(CompileError, match="0 or more, found -"):
        compile_within(push=-1)


def test_a_wrong_budget_is_refused_before_anything_is_traced(monkeypatch):
    monkeypatch.delattr("kvc.compiler.pipeline.import_program")
    with pytest.raises(CompileError, match="no method 'pull'"):
        compile_within(pull=0)
