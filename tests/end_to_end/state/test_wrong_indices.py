"""An index that is out of range leaves a state as it was: nothing is written before."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import IndexOutOfRange


class Rows(nn.Module):
    """Keeps the rows of a table that were asked for last."""

    rows: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 4))
        self.register_buffer("table", torch.arange(40.0).view(10, 4) + 1)

    def look_up(self, indices: Tensor) -> Tensor:
        self.rows.copy_(functional.embedding(indices, self.table))
        return indices + 1

    def select(self, indices: Tensor) -> Tensor:
        self.rows.copy_(self.table.index_select(0, indices))
        return indices + 1

    def get(self, x: Tensor) -> Tensor:
        return self.rows + x


@pytest.mark.parametrize("recipe", ["fp32", "cpu_fp32"])
def test_rows_before_a_wrong_one_are_not_written(tmp_path: Path, recipe: str) -> None:
    given, wrong = np.arange(8), np.array([5, 6, 7, 8, 9, 5, 6, 99])
    methods = [Method(name, args=(given,)) for name in ("look_up", "select")]
    methods.append(Method("get", args=(torch.zeros(1),)))
    compile_program(Rows().eval(), methods, recipe).save(tmp_path / "rows.kvc")
    nothing = np.zeros(1, np.float32)
    with load(tmp_path / "rows.kvc") as program:
        for name in ("look_up", "select"):
            with program.session() as session:
                session.call(name, given)
                before = np.array(session.call("get", nothing))
                with pytest.raises(IndexOutOfRange):
                    session.call(name, wrong)
                assert np.array_equal(session.call("get", nothing), before)
                assert before.any()
