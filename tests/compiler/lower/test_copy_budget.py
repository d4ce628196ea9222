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
    change, advice = facts.listing.splitlines()[-2:]
    assert change == "changes that would save these:"
    assert advice.startswith("  32 bytes at ")
    assert "change the state in place (add_, index_copy_, cache_update)" in advice


def test_a_state_that_a_partition_writes_is_named_as_its_method_names_it():
    told = []
    for recipe in ("fp32", "cpu_fp32"):
        with pytest.raises(CopyBudgetExceeded) as error:
            compile_program(Layers(), METHODS[:1], recipe, max_copy_bytes={"push": 0})
        lines = error.value.listing.splitlines()
        copies = lines[: lines.index("changes that would save these:")]
        told.append({line.split(":")[0] for line in copies})
    assert told == [{"  first", "  second", "  total"}] * 2


class Layers(nn.Module):
    """Keeps the last numbers of two layers, by the same line, and hands one out."""

    def __init__(self):
        super().__init__()
        for name, length in (("first", 8), ("second", 16), ("total", 4)):
            self.register_buffer(name, torch.zeros(length))

    def push(self, x):
        for name in ("first", "second"):
            last = self.get_buffer(name)
            last.copy_(torch.cat([last[1:], x]))
        before = self.total.clone()
        self.total.add_(x)
        return before


def test_a_change_of_one_line_saves_what_all_layers_copy_there():
    methods = [Method("push", args=(torch.ones(1),))]
    with pytest.raises(CopyBudgetExceeded) as error:
        compile_program(Layers(), methods, max_copy_bytes={"push": 0})
    told = error.value.listing.splitlines()
    changes = told[told.index("changes that would save these:") + 1 :]
    assert [line.split(" at ")[0] for line in changes] == ["  96 bytes", "  16 bytes"]
    assert changes[1].endswith("or only values computed from the old one")


class Twice(nn.Module):
    """Needs its old value for two reasons, and copies it as long as one is left."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def push(self, x):
        before = self.total.clone()
        self.total.add_(x)
        return before, before * self.total


def test_what_two_changes_save_together_is_not_promised_for_one():
    methods = [Method("push", args=(torch.ones(1),))]
    with pytest.raises(CopyBudgetExceeded) as error:
        compile_program(Twice(), methods, "fp32", max_copy_bytes={"push": 0})
    copy, _, change = error.value.listing.splitlines()
    for line in (copy, change):
        assert line.startswith("  ")
        assert "32 bytes" in line
    assert "makes the new one; the method returns the old value" in copy
    assert "; and return the new value, or only values computed" in change


def test_a_budget_for_no_method_or_below_zero_is_refused():
    with pytest.raises(CompileError, match="no method 'pull'; methods: push, add"):
        compile_within(pull=0)
    with pytest.raises(CompileError, match="0 or more, found -"):
        compile_within(push=-1)


def test_a_wrong_budget_is_refused_before_anything_is_traced(monkeypatch):
    monkeypatch.delattr("kvc.compiler.pipeline.import_program")
    with pytest.raises(CompileError, match="no method 'pull'"):
        compile_within(pull=0)
