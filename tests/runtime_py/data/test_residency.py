"""The residency report."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from data_programs import table_program, write_data_bundle
from delegated_partitions import delegated_program
from fake_backends import backend_of
from hand_built import write_bundle
from resident_memory import LINUX, map_field

from kvc.runtime import Closed, Totals, load
from kvc.runtime.delegates.table import DELEGATES
from kvc.runtime.execution.delegate import Handle

MODES = ("map", "read", "huge")
OTHER = np.full(50_000, 7, np.float32)
TABLE_NBYTES = 500 * 4096


@pytest.fixture(params=MODES)
def opened(tmp_path, request):
    built = table_program(500, other=OTHER, tied=OTHER)
    path = write_data_bundle(tmp_path / "t.kvc", built, external=True)
    with load(path, request.param) as program:
        yield program


def test_a_new_program_has_nothing_in_memory(opened):
    residency = opened.residency()
    assert residency.totals == Totals(TABLE_NBYTES + OTHER.nbytes, 0, 0, 0, 0, 0)
    table, other = residency.blobs
    assert table.names == ("table",)
    assert table.methods == ("row", "total")
    assert other.names == ("other", "tied")
    assert other.methods == ()
    assert table.file.endswith(".kvd")
    assert table.handles == other.handles == 0


@LINUX
def test_it_follows_use_and_release(opened):
    opened.total()
    with opened.data["tied"], opened.data["other"]:
        table, other = opened.residency().blobs
    assert table.mapped == table.touched == TABLE_NBYTES
    assert table.handles == 1
    assert other.handles == 2
    opened.release()
    table, _ = opened.residency().blobs
    assert (table.touched, table.freed, table.handles) == (0, TABLE_NBYTES, 0)


@LINUX
def test_what_is_touched_agrees_with_smaps(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(8000))
    with load(path) as opened, opened.data["table"] as buffer:
        array = buffer.array()
        assert opened.residency().totals.touched == 0
        assert array[::1200, 0].max() == 7200
        touched = opened.residency().blobs[0].touched
        whole = map_field("Rss", path=path)
        assert 0 < touched <= whole < array.nbytes
        # Header and program lie around the table.
        assert whole - touched <= 64 << 10


def test_a_report_is_frozen(opened):
    with pytest.raises(FrozenInstanceError):
        opened.residency().mode = "x"


def test_a_closed_program_has_no_report(opened):
    opened.close()
    with pytest.raises(Closed):
        opened.residency()


class Packing(Handle):
    """A backend that keeps its data in a form of its own."""

    def __init__(self, partition, data):
        self.copy = data["scale"].array().copy()

    def prepare(self, inputs, outputs, workspace, sizes):
        def run():
            outputs[1][:] = inputs[0] * self.copy

        return run

    def packed(self):
        return {"scale": self.copy.nbytes}

    def close(self):
        self.copy = None


def test_what_delegates_pack_is_told_until_they_are_released(tmp_path, monkeypatch):
    monkeypatch.setitem(DELEGATES, "xnnpack", backend_of(Packing))
    with load(write_bundle(tmp_path / "d.kvc", delegated_program())) as opened:
        assert opened.residency().totals.packed == 0
        opened.forward(np.ones((2, 4), np.float32))
        (blob,) = opened.residency().blobs
        assert (blob.packed, blob.handles) == (16, 0)
        opened.release()
        assert opened.residency().totals.packed == 0


def test_the_reference_packs_nothing(tmp_path):
    path = write_bundle(tmp_path / "d.kvc", delegated_program())
    with load(path, reference=True) as opened:
        opened.forward(np.ones((2, 4), np.float32))
        (blob,) = opened.residency().blobs
        assert (blob.packed, blob.handles, blob.methods) == (0, 1, ("forward",))
