"""Adapters in saved sessions: scales that no session can have are refused."""

from dataclasses import replace

import numpy as np
import pytest
from changed_snapshots import LEAD, change_header, reseal
from sample_programs import state
from stateful_programs import BATCH, session_program, total_program

from kvc.runtime import BadSnapshot
from kvc.runtime.adapters.adapter_file import write_adapter
from kvc.schema.adapters import GAIN, OFFSET, RANKS, ROWS, SCALES, A, B
from kvc.schema.dtypes import DType
from kvc.schema.model import Blob, NamedData, StateKind
from kvc.schema.types import TensorType
from kvc.schema.uses import SLOT

F32, I64 = DType.FLOAT32, DType.INT64
PARTS = {
    A: TensorType(F32, (3, 4, 3)),
    B: TensorType(F32, (3, 4, 5)),
    RANKS: TensorType(I64, (3,)),
    GAIN: TensorType(F32, (3, 5)),
    OFFSET: TensorType(F32, (3, 5)),
}


def adaptable_program():
    """Return a program of rows with slots, which its methods do not read."""
    built, arrays = session_program((BATCH,), BATCH)
    (write,) = built.methods
    given = (
        state(ROWS, TensorType(I64, (BATCH,)), StateKind.PLAIN),
        state(SCALES, TensorType(F32, (BATCH,)), StateKind.PLAIN),
    )
    program = replace(
        built,
        blobs=(Blob(bytes(32), 0, 0, 0, 64),),
        names=tuple(NamedData(f"x.{n}", 0, k, SLOT, "") for n, k in PARTS.items()),
        states=(*built.states, *given),
        methods=(write, replace(write, name="adapted_write", adapts=0)),
    )
    return program, arrays | {"": np.zeros(0, np.uint8)}


@pytest.fixture
def saved(opened, tmp_path):
    """Return a program with an adapter, and the file of a session that has it."""
    program = opened(adaptable_program())
    parts = {A: np.ones((2, 3), np.float32), B: np.ones((2, 5), np.float32)}
    gains = {GAIN: np.ones(5, np.float32), OFFSET: np.ones(5, np.float32)}
    write_adapter(tmp_path / "plain.kva", program.identity, {"x": parts})
    write_adapter(tmp_path / "gains.kva", program.identity, {"x": parts | gains})
    program.adapters.load(tmp_path / "plain.kva")
    with program.session(batch=2, adapter=["plain", None], scale=[0.5, 1]) as session:
        session.save(tmp_path / "s.kvs")
    return program, tmp_path / "s.kvs"


def with_scale(file, text):
    """Write a scale into the header of a file, as this text."""
    change_header(file, lambda header: header["adapters"][0].__setitem__(2, "?"))
    raw = file.read_bytes()
    magic, version, nbytes = LEAD.unpack(raw[: LEAD.size])
    header = raw[LEAD.size : LEAD.size + nbytes].replace(b'"?"', text.encode())
    lead = LEAD.pack(magic, version, len(header))
    file.write_bytes(reseal(lead + header + raw[LEAD.size + nbytes :]))


@pytest.mark.parametrize("text", ["0.5", "-2", "1e-400", "1" + "0" * 30])
def test_finite_scales_come_back(saved, text):
    program, file = saved
    with_scale(file, text)
    with program.restore(file) as session:
        assert session.adapters == ("plain", None)
        _, scale = session._states.adapters.rows[0]
        assert scale == float(text)


@pytest.mark.parametrize(
    "text",
    [
        *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 400),
        *("-1" + "0" * 400, "1" + "0" * 5000, "true", "null", "[1]", '"1"'),
    ],
)
def test_a_scale_that_is_no_finite_number_is_refused(saved, text):
    program, file = saved
    with_scale(file, text)
    with pytest.raises(BadSnapshot, match=r"adapters is \[|not a JSON object"):
        program.restore(file)
    program.adapters.free("plain")


def test_a_scale_of_an_adapter_with_gains_is_refused(saved, tmp_path):
    program, file = saved
    program.adapters.load(tmp_path / "gains.kva")
    with program.session(batch=2, adapter="gains") as session:
        session.save(file)
    program.restore(file).close()
    with_scale(file, "0.5")
    with pytest.raises(BadSnapshot, match="adapter 'gains' multiplies results"):
        program.restore(file)
    program.adapters.free("gains")


def test_states_named_as_those_of_adapters_are_like_others_without_slots(
    opened, tmp_path
):
    built, arrays = total_program(3)
    (total,) = built.states
    other = replace(total, name=SCALES, type=TensorType(F32, (7,)))
    program = opened(
        (replace(built, states=(replace(total, name=ROWS), other)), arrays)
    )
    with program.session() as session:
        session.add()
        session.save(tmp_path / "s.kvs")
        assert session.state[ROWS].tolist() == [1, 1, 1]
        assert session.state[SCALES].tolist() == [0] * 7
        session.reset()
        assert session.state[ROWS].tolist() == [0, 0, 0]
    with program.restore(tmp_path / "s.kvs") as session:
        assert session.state[ROWS].tolist() == [1, 1, 1]
        assert session.state[SCALES].tolist() == [0] * 7
