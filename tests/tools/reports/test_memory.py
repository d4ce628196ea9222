"""Which writes copy, and byte counts as formulas."""

from dataclasses import replace

from sample_programs import sample_program

from kvc.schema.dtypes import DType
from kvc.schema.model import Update
from kvc.schema.types import TensorType, affine
from kvc.tools.reports.memory import UpdateReport, describe_copies, formula, nbytes_of
from kvc.tools.reports.tables import copy_lines

SEQ, BATCH = affine(0, {"seq": 1}), affine(0, {"batch": 1})


def with_updates(*updates):
    """Return the sample with other verdicts on the writes of decode alone."""
    program = sample_program()
    decode = replace(program.methods[1], updates=updates)
    return replace(program, methods=(decode,))


def test_updates_that_copy_nothing_are_safe():
    writes = [u.instruction for u in sample_program().methods[1].updates]
    updates = describe_copies(with_updates(*(Update(w, "", ()) for w in writes)))
    assert [(u.method, u.state, u.verdict) for u in updates] == [
        ("decode", "cache", "SAFE"),
        ("decode", "position", "SAFE"),
    ]
    assert copy_lines(updates, full=False)[-1] == "  2 updates of states, all in place"


def test_a_verdict_with_copies_counts_the_bytes_of_their_results():
    first = sample_program().methods[1].updates[0].instruction
    (copy,) = describe_copies(with_updates(Update(first, "why", (first,))))
    assert (copy.state, copy.bytes_per_call, copy.reason) == ("cache", 512, "why")
    assert copy_lines([copy], full=False)[-1].startswith(
        "  1 update of states, 1 by copy: 512 B"
    )


def test_layers_share_a_line_unless_all_is_asked_for():
    updates = [
        UpdateReport(
            "f", f"layers.{i}.k", "COPY", 100, "read later", f"m:1 (layers.{i})"
        )
        for i in range(30)
    ]
    updates.append(UpdateReport("f", "layers.30.k", "SAFE", 0, "", "m:1 (layers.30)"))
    title, copies, safe, _ = copy_lines(updates, full=False)
    assert copies.split()[:4] == ["f", "layers.{0..29}.k", "COPY", "3,000"]
    assert "m:1 (layers.{0..29})" in copies
    assert "layers.30.k" in safe
    assert copy_lines(updates, full=True)[0].split() == title.split()
    assert len(copy_lines(updates, full=True)) == 33


def text(*shapes):
    return formula(nbytes_of(TensorType(DType.FLOAT32, dims) for dims in shapes))


def test_bytes_as_a_formula():
    assert text((2, 3)) == "24"
    assert text((SEQ, 3), (5,)) == "12*seq + 20"
    assert text((BATCH, SEQ, 2), (SEQ, 1)) == "8*batch*seq + 4*seq"
    assert text((affine(-1, {"seq": 2}), SEQ)) == "8*seq*seq - 4*seq"
    assert text((affine(0, {"seq": 1}, {("batch", "seq"): 2}), 2)) == (
        "16*batch*seq + 8*seq"
    )
    assert text() == "0"
