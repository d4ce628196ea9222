"""Files beyond 4 GiB: what is used comes from the right place, and nothing else."""

import numpy as np
import pytest
from data_programs import table_program, write_behind_a_hole
from resident_memory import LINUX, resident_nbytes

from kvc.runtime import load

GIB = 1 << 30


@pytest.mark.parametrize("mode", ["map", "read", "huge"])
@LINUX
def test_data_behind_4_gib_is_what_was_written(tmp_path, mode):
    path = write_behind_a_hole(tmp_path / "t.kvc", table_program(600), 5 * GIB)
    assert path.stat().st_size > 5 * GIB
    assert path.stat().st_blocks * 512 < 64 << 20
    before = resident_nbytes()
    with load(path, mode) as program:
        assert program.row(np.array([599])).min() == 599
        assert program.total()[0, 0] == 600 * 599 / 2
        assert program.residency().blobs[1].nbytes == 5 * GIB
        program.release()
    assert resident_nbytes() - before < 256 << 20
