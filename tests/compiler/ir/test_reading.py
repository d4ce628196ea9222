"""Text of the IR read back is the program that it was written from."""

import re
from dataclasses import replace

import pytest
import torch
from golden import FOLDER
from ir_samples import CACHE, I64, method, node, program, value

from kvc.compiler.ir.reading import read_program
from kvc.compiler.ir.text import program_text
from kvc.compiler.ir.verify import verify
from kvc.compiler.weights.sources import TensorSource

GOLDEN = sorted(path.name for path in FOLDER.glob("pass_*.txt"))
ANY = TensorSource(torch.zeros(1))


class Anything(dict):
    """Bytes for a constant of any name."""

    def __missing__(self, name):
        return ANY


@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_read_is_written_alike(name):
    for part in re.split(r"(?:^|\n)# .*\n", (FOLDER / name).read_text())[1:]:
        read = read_program(part, Anything())
        assert program_text(read) == part
        verify(read)


def test_every_kind_of_argument_comes_back():
    x, made = value(0, *CACHE), value(1, *CACHE)
    numbers = (1, -2, 1.0, 1e-6, float("inf"), None, True, False, "linear", "", I64)
    whole = program(
        method(
            node("aten::neg", x, *numbers, (), (x, 3, None), to=made),
            inputs=(x,),
            outputs=(made,),
        )
    )
    (read,) = read_program(program_text(whole)).methods[0].nodes
    (written,) = whole.methods[0].nodes
    assert read == replace(written, source="")
    assert list(map(type, read.arguments)) == list(map(type, written.arguments))


@pytest.mark.parametrize("size", ["7", "seq", "2*seq-1", "rows*seq+seq+3", "-1*seq+8"])
def test_sizes_are_read_as_they_are_written(size):
    text = (
        "symbol rows in 1..4\nsymbol seq in 1..8\nmethod step\n"
        f"  %0 = input x: float32[{size}, 1]\n  return %0\n"
    )
    assert program_text(read_program(text)) == text


@pytest.mark.parametrize("window", ["", " window 5", " window 5 and the first 3"])
def test_windows_are_read_as_they_are_written(window):
    text = (
        "state k: float32[1, 2, 12, 4] = zeros RING along 2 at cursor 0"
        f"{window}\nmethod step\n  %0 = state k\n  state k = %0\n  return \n"
    )
    assert program_text(read_program(text)) == text


@pytest.mark.parametrize(
    ("line", "number"),
    [("stat k: float32[1] = zeros", 1), ("state k: floating[1] = zeros", 1)],
)
def test_what_is_no_line_is_told(line, number):
    with pytest.raises(ValueError, match=f"line {number}: "):
        read_program(line)


def test_a_value_that_nothing_makes_is_told():
    with pytest.raises(ValueError, match=r"line 2: '  %1 = aten::neg\(%0\)"):
        read_program("method step\n  %1 = aten::neg(%0): float32[1]\n  return %1\n")
