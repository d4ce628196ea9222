"""A small share of the random chains of views, the same each day, and their judge."""

import re
from collections import Counter

import pytest
import torch
from chain_drawer import is_undefined
from chain_program import Chains
from daily import RARELY
from random_chains import FINDINGS, KINDS, draw, outcome

SHARE = 6  # programs a test
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("block", range(4))
def test_writes_through_chains_of_views_are_as_in_eager(block, tmp_path):
    numbers = range(block * SHARE, (block + 1) * SHARE)
    found = {number: outcome(draw(number), tmp_path) for number in numbers}
    assert {n: one for n, one in found.items() if one.kind in FINDINGS} == {}
    assert any(one.kind == "right" for one in found.values())


def test_one_changed_element_is_noticed(tmp_path):
    right = [n for n in range(12) if outcome(draw(n), tmp_path).kind == "right"]
    assert len(right) > 4
    for number in right:
        assert outcome(draw(number), tmp_path, corrupt=True).kind == "wrong"


def test_a_write_that_is_lost_is_noticed(tmp_path, monkeypatch):
    """The compiled program lacks a write that reaches what is returned."""
    found = Counter()
    for number in range(40):
        program, without = draw(number), draw(number)
        writes = [line for line in program.lines if re.match(r"\w+\.[a-z]+_\(", line)]
        if program.kind != "plain" or not writes:
            continue
        without.lines.remove(writes[-1])
        monkeypatch.setattr(without, "expected", program.expected)
        found[outcome(without, tmp_path).kind] += 1
    assert found["wrong"] > 2  # others change nothing that is returned


def test_an_exception_of_the_compiler_is_a_finding(tmp_path, monkeypatch):
    def explode(*_):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("kvc.compiler.pipeline.import_program", explode)
    number = next(n for n in range(9) if outcome(draw(n), tmp_path).kind == "error")
    assert "ZeroDivisionError: a defect" in outcome(draw(number), tmp_path).reason


def test_equal_numbers_are_equal_programs():
    first, again = draw(3), draw(3)
    assert first.text() == again.text()
    assert str(first.calls) == str(again.calls)
    assert draw(4).text() != first.text()


def test_all_kinds_of_steps_are_drawn():
    programs = [draw(number) for number in range(400)]
    texts = "".join(one.text() for one in programs)
    assert {one.kind for one in programs} == set(KINDS)
    assert any(one.dynamic is not None for one in programs)
    assert any(one.undefined for one in programs)
    assert any(b.dtype is torch.int64 for one in programs for b in one.buffers.values())
    assert any(not b.is_contiguous() for one in programs for b in one.buffers.values())
    assert any(1 in call[0].shape for one in programs for call in one.calls)
    called = Counter(re.findall(r"\.(\w+)\(", texts))
    names = """
        select narrow transpose permute t unsqueeze squeeze reshape view flatten
        unflatten expand expand_as unbind split chunk tensor_split diagonal unfold
        as_strided detach alias view_as contiguous to movedim swapaxes dropout add_ mul_
        copy_ fill_ zero_ index_copy_ index_put_ index_fill_ index_add_ scatter_
        masked_fill_ exp clamp_ t_ unsqueeze_ squeeze_
        """
    assert [name for name in names.split() if not called[name]] == []
    assert all(word in texts for word in ("out=", ".data", ".mT", "view(torch.int32)"))


def test_bodies_of_the_kind_outside_write_what_is_not_theirs():
    """Plain Python's control flow takes these; torch's refuses them."""
    program = next(one for one in map(draw, range(99)) if one.kind == "outside")
    assert program.expected()
    with pytest.raises(Exception, match=r"mutat|alias|higher order"):
        Chains(program, plain=False).forward(*program.calls[0])


def test_order_decides_where_elements_are_reached_twice_or_read_while_written():
    x = torch.arange(12.0).reshape(3, 4)
    assert is_undefined(x.unfold(0, 2, 1), ())
    assert is_undefined(x.expand(2, 3, 4), ())
    assert is_undefined(x[1:], (x[:-1],))
    assert is_undefined(x[:3, :3], (x[:3, :3].mT,))
    assert is_undefined(x, (x,), elementwise=False)
    assert not is_undefined(x.unfold(1, 2, 2), ())
    assert not is_undefined(x, (x,))
    assert not is_undefined(x[:, ::2], (x[:, 1::2],))
    assert not is_undefined(x[1:], (x[:-1].clone(),))


@RARELY
@pytest.mark.parametrize("block", range(40))
def test_many_chains_are_as_in_eager(block, tmp_path):
    found = Counter()
    for number in range(block * 50, (block + 1) * 50):
        made = outcome(draw(number), tmp_path)
        found[made.kind] += 1
        assert made.kind not in FINDINGS, (number, made)
    assert found["right"] >= 15
