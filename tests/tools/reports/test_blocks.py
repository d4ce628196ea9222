"""Reports see the code and the writes of blocks."""

from dataclasses import replace

from block_programs import control_program
from ragged_programs import ragged_program

from kvc.schema.model import Advance
from kvc.schema.ops import OPS, Aliasing
from kvc.tools.reports.instructions import describe_listing
from kvc.tools.reports.memory import describe_copies
from kvc.tools.reports.methods import describe_methods
from kvc.tools.reports.overview import left_text, method_lines
from kvc.tools.reports.tables import listing_lines

WHOLE = control_program()
RAGGED, _ = ragged_program()
IDLE = {Aliasing.VIEW, Aliasing.CONTROL}


def test_a_listing_shows_blocks_beneath_what_runs_them():
    lines = listing_lines(describe_listing(WHOLE, WHOLE.methods[0]), full=True)
    heads = [line.split("|")[1].strip() for line in lines if "| block" in line]
    assert heads == [f"block {number}" for number in range(5)]
    assert any("|   %" in line and "aten::index_copy" in line for line in lines)


def test_a_listing_says_what_is_written_and_what_cursors_gain():
    write = RAGGED.methods[0]
    lines = listing_lines(describe_listing(RAGGED, write), full=True)
    assert lines[-1] == "  advance cursor 0 by seq, of which row_lengths count"
    assert [line.split("; ")[1] for line in lines if "; " in line] == [
        "writes %3 SLOTS axis 2: seq",
        "writes %2 ANYWHERE",
    ]
    open_ended = replace(write, advances=(Advance(0, None),))
    lines = listing_lines(describe_listing(RAGGED, open_ended), full=True)
    assert lines[-1] == "  advance cursor 0 by what its loops decide"


def test_a_write_in_a_branch_is_one_of_its_state():
    found = [(w.state, w.verdict, w.source) for w in describe_copies(WHOLE)]
    assert found == [("a", "SAFE", "model:2")]


def test_instructions_of_blocks_count():
    (report,) = describe_methods(WHOLE)
    graphs = WHOLE.methods[0].graphs
    assert report.instructions == sum(len(g.instructions) for g in graphs)
    assert len(graphs) == 6


def test_instructions_that_no_backend_runs_are_counted_in_blocks_too():
    (report,) = describe_methods(WHOLE)
    ops = {step.op for graph in WHOLE.methods[0].graphs for step in graph.instructions}
    computing = {op for op in ops if OPS[op].aliasing not in IDLE}
    assert set(report.left) == computing
    assert left_text({}) == "none left to PyTorch"
    found = left_text({"aten::a": 3, "aten::b": 2, "aten::c": 1, "aten::d": 1})
    assert found == "7 left to PyTorch (aten::a, aten::b, aten::c, ...)"


def test_a_method_says_that_loops_decide_what_it_adds():
    method = replace(RAGGED.methods[0], advances=(Advance(0, None),))
    (report,) = describe_methods(replace(RAGGED, methods=(method,)))
    assert report.advance == "any"
    said = "its loops decide how many tokens it adds to the position"
    assert f"      {said}" in method_lines([report])


def test_a_method_says_by_what_it_counts_the_tokens_of_a_row():
    write, step = describe_methods(RAGGED)
    assert (write.advance, write.row_lengths) == ("seq", "row_lengths")
    assert (step.advance, step.row_lengths) == ("1", "row_lengths")
    said = "of seq tokens row_lengths says how many count in each row; left out: all"
    assert f"      {said}" in method_lines([write])
    shown = "      row_lengths says which rows take part; left out: all"
    assert shown in method_lines([step])
    assert (
        describe_methods(WHOLE)[0].advance,
        describe_methods(WHOLE)[0].row_lengths,
    ) == (
        "",
        "",
    )
