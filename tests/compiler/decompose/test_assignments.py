"""Assignments and copies that torch would not trace, or would trace wrongly."""

import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.decompose.assignments import TraceableAssignments
from kvc.compiler.trace import capture
from kvc.runtime import load
from kvc.schema.errors import CaptureError

ROWS = torch.arange(12.0).reshape(2, 2, 3)


class Writer(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.register_buffer("k", torch.zeros(2, 8, 3))
        self.register_buffer("p", torch.tensor(3))
        self.write = write

    def step(self, x):
        self.write(self, x)
        return self.k * 1.0


def traced(write, folder, dynamic=None):
    """Return what the bundle makes of the buffer, and what eager does."""
    method = Method("step", args=(ROWS,), dynamic=dynamic or {})
    compile_program(Writer(write), [method]).save(folder / "step.kvc")
    with load(folder / "step.kvc") as program, program.session() as session:
        return session.step(ROWS), Writer(write).step(ROWS)


def one_place(m, x):
    m.k[:, m.p] = x[:, 0]


def one_number(m, x):
    m.k[:, m.p] = 7.5


def a_read_number(m, x):
    m.k[:, m.p.item()] = x[:, 0]


def a_slice(m, x):
    m.k[:, m.p : m.p + 2, 1:] = x[:, :, 1:]


def with_an_ellipsis(m, x):
    m.k[..., m.p - 2] = x[:, :1, 0]


def with_a_new_axis(m, x):
    m.k[None, 0, m.p] = x[0, 0]


def of_more_dims(m, x):
    m.k[0, m.p] = x[:1, :1, :]


def of_another_dtype(m, x):
    m.k[0, m.p] = torch.tensor([1, 2, 3])


def a_row_of_a_view(m, x):
    m.k[0][m.p] = x[0, 0]


def an_index(m, x):
    m.k[:, torch.tensor([1, 2])] = x


def a_mask(m, x):
    m.k[m.k == 0] = 1.0


def copy_of_fewer_dims(m, x):
    m.k.copy_(x[0, 0])


def copy_of_another_dtype(m, x):
    m.k.copy_(torch.arange(3))


def fill_with_a_tensor(m, x):
    m.k.fill_(x.sum())


@pytest.mark.parametrize(
    "write",
    [
        one_place, one_number, a_read_number, a_slice, with_an_ellipsis,
        with_a_new_axis, of_more_dims, of_another_dtype, a_row_of_a_view, an_index,
        a_mask, copy_of_fewer_dims, copy_of_another_dtype, fill_with_a_tensor,
    ],
)  # fmt: skip
def test_an_assignment_is_traced_as_eager_does_it(write, tmp_path):
    got, expected = traced(write, tmp_path)
    assert got.dtype is expected.dtype
    assert torch.equal(got, expected)
    assert expected.abs().sum() > 0


def test_a_place_that_follows_from_a_size_is_traced(tmp_path):
    def write(m, x):
        m.k[:, x.shape[1]] = x[:, 0]

    got, expected = traced(write, tmp_path, {"x": {1: Dim("seq", 1, 7)}})
    assert torch.equal(got, expected)


def test_a_slice_may_be_as_long_as_its_axis():
    """Tracing must not ask whether it is: both lengths are declared."""

    def write(m, x):
        m.k[:, : x.shape[1]] = x

    method = Method("step", args=(ROWS,), dynamic={"x": {1: Dim("seq", 1, 8)}})
    graph = capture(Writer(write), method).exported.graph
    assert torch.ops.aten.slice_scatter.default in {n.target for n in graph.nodes}


def test_a_write_into_an_expanded_tensor_is_still_refused(tmp_path):
    def write(m, x):
        m.k[:, :1].expand(2, x.shape[1], 3).copy_(x)

    with pytest.raises(CaptureError, match="single memory location"):
        traced(write, tmp_path, {"x": {1: Dim("seq", 1, 8)}})


def test_plain_python_assigns_as_ever():
    tensor = torch.zeros(2, 3)
    with TraceableAssignments():
        tensor[0, torch.tensor(-1)] = torch.tensor(4)
        tensor[1, :2] = 5
        with pytest.raises(IndexError):
            tensor[torch.tensor(2)] = 1
    assert tensor.tolist() == [[0, 0, 4], [5, 5, 0]]
