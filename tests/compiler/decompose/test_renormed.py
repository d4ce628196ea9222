"""Tables whose rows have a greatest norm: rows are shortened, no table is written."""

import copy

import numpy as np
import pytest
import torch
from module_outcomes import outcome
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import CaptureError


class Looking(nn.Module):
    def __init__(self, norm_type: float = 2.0) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, max_norm=1.0, norm_type=norm_type)
        self.table.weight.data[::2] *= 5
        self.table.weight.data[1::2] *= 0.01

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens) + self.table(tokens.flip(0))


class Tied(Looking):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens) @ self.table.weight.T


class TwiceRead(Looking):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens) + functional.embedding(tokens, self.table.weight)


class TwoBounds(Looking):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens) + self.within(tokens)

    def within(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.table.weight, max_norm=2.0)

    def plain(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.table.weight)

    def alone(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)

    def also(self, tokens: Tensor) -> Tensor:
        return self.table(tokens.flip(0))


TOKENS = torch.tensor([0, 3, 8, 8, 5])


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_rows_are_those_of_eager(norm_type, tmp_path):
    torch.manual_seed(0)
    found = outcome(Looking(norm_type), (TOKENS,), {}, tmp_path / "table.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_the_table_stays_as_it_is():
    model = Looking()
    before = copy.deepcopy(model.state_dict())
    bundle = compile_program(model, [Method("forward", (TOKENS,))])
    assert torch.equal(model.table.weight, before["table.weight"])
    assert not bundle.program.states


@pytest.mark.parametrize("kind", [Tied, TwiceRead, TwoBounds])
def test_other_code_that_reads_the_table_is_refused(kind):
    with pytest.raises(CaptureError, match=r"max_norm=.*shortens in place is read by"):
        compile_program(kind(), [Method("forward", (TOKENS,))])


class Parts(nn.Module):
    """Two tables that are parts of one storage."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = [torch.randn(18, 4) * 3]
        (rows,) = self.rows
        self.one, self.other = (nn.Embedding(9, 4, max_norm=n) for n in (1.0, 2.0))
        self.one.weight = nn.Parameter(rows[:9])
        self.other.weight = nn.Parameter(rows[9:])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.one(tokens) + self.other(tokens)

    def plain(self, tokens: Tensor) -> Tensor:
        return self.one(tokens) + functional.embedding(tokens, self.other.weight)

    def other_alone(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.other.weight)

    def alone(self, tokens: Tensor) -> Tensor:
        return self.one(tokens)


class Across(Parts):
    """Another table has rows of both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("both", self.rows[0][4:14])

    def across(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.both)


@pytest.mark.parametrize("name", ["forward", "plain"])
def test_tables_that_are_parts_of_one_storage_have_bounds_of_their_own(name, tmp_path):
    model = Parts()
    wanted = getattr(copy.deepcopy(model), name)(TOKENS)
    bundle = compile_program(model, [Method(name, (TOKENS,))])
    assert torch.equal(model.one.weight, Parts().one.weight)
    bundle.save(tmp_path / "m.kvc")
    with load(tmp_path / "m.kvc") as program:
        found = getattr(program, name)(TOKENS.numpy())
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-6)


def test_another_method_may_read_another_part_alone():
    methods = [Method(name, (TOKENS,)) for name in ("alone", "other_alone")]
    assert len(compile_program(Parts(), methods).program.methods) == 2


def test_a_table_that_has_rows_of_a_bounded_one_is_refused():
    methods = [Method(name, (TOKENS,)) for name in ("alone", "across")]
    with pytest.raises(CaptureError, match="with another bound"):
        compile_program(Across(), methods)


class Given(nn.Module):
    def forward(self, tokens: Tensor, table: Tensor) -> Tensor:
        return functional.embedding(tokens, table, max_norm=1.0)


def test_a_table_of_the_caller_is_refused():
    with pytest.raises(CaptureError, match=r"max_norm=.*is given by the caller"):
        compile_program(Given(), [Method("forward", (TOKENS, torch.ones(9, 4)))])


@pytest.mark.parametrize("other", ["within", "plain"])
def test_another_method_that_reads_the_table_otherwise_is_refused(other):
    methods = [Method(name, (TOKENS,)) for name in ("alone", other)]
    with pytest.raises(CaptureError, match="with another bound") as caught:
        compile_program(TwoBounds(), methods)
    assert caught.value.method == other


def test_methods_with_the_same_bound_share_a_table():
    methods = [Method(name, (TOKENS,)) for name in ("alone", "also")]
    bundle = compile_program(TwoBounds(), methods)
    assert len(bundle.program.methods) == 2


@pytest.mark.parametrize("bound", [{"norm_type": 0.0}, {"max_norm": -1.0}])
def test_bounds_that_change_rows_each_time_are_refused(bound):
    model = Looking()
    for name, value in bound.items():
        setattr(model.table, name, value)
    with pytest.raises(CaptureError, match="changes rows at each lookup"):
        compile_program(model, [Method("forward", (TOKENS,))])


class Computed(nn.Module):
    """A table that the method computes, and reads before and after a lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, tokens: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        table = (self.table.weight * scale).reshape(-1)[4:].reshape(8, 4)
        kept, before = table[2:5], table.sum()
        rows = functional.embedding(tokens, table, max_norm=1.0)
        return before, rows, table, kept * 2


def test_a_table_that_the_method_computes_is_written(tmp_path):
    torch.manual_seed(0)
    inputs = (TOKENS % 8, torch.tensor(3.0))
    assert outcome(Computed(), inputs, {}, tmp_path / "m.kvc").kind == "equal"


class Attribute(nn.Module):
    """A table that is no parameter and no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(36.0).reshape(9, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.table, max_norm=1.0)


def test_a_table_that_is_an_attribute_stays_as_it_is(tmp_path):
    model = Attribute()
    method = Method("forward", (TOKENS,))
    compile_program(model, [method]).save(tmp_path / "m.kvc")
    assert torch.equal(model.table, Attribute().table)
    with load(tmp_path / "m.kvc") as program:
        torch.testing.assert_close(program.forward(TOKENS), Attribute()(TOKENS))


class Bags(nn.Module):
    """Sums of shortened rows of its own table, which changes, and of a computed one."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(9, 4, max_norm=1.0, mode="sum")

    def forward(self, tokens: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        table = table * 3
        ends = torch.tensor([0, 2])
        computed = functional.embedding_bag(tokens, table, ends, max_norm=2.0)
        return self.bags(tokens, ends), computed, table


def test_bags_of_shortened_rows_change_their_table_as_in_torch(tmp_path):
    torch.manual_seed(0)
    inputs = (TOKENS.flatten(), torch.randn(9, 4))
    found = outcome(Bags(), inputs, {}, tmp_path / "m.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_an_attribute_that_is_read_otherwise_too_is_refused():
    class Read(Attribute):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens) + self.table.sum()

        def beside(self, tokens: Tensor) -> Tensor:
            return self.table[tokens]

        def alone(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens)

    for names in (["forward"], ["alone", "beside"]):
        with pytest.raises(CaptureError, match="is read by other code too"):
            compile_program(Read(), [Method(name, (TOKENS,)) for name in names])


def test_rows_in_the_same_memory_are_refused():
    class Same(nn.Module):
        def forward(self, tokens: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            table = (2 * row).expand(9, 4)
            return functional.embedding(tokens, table, max_norm=1.0), table

    with pytest.raises(CaptureError, match="rows lie in the same memory"):
        compile_program(Same(), [Method("forward", (TOKENS, torch.ones(4)))])
