"""Reports see the code and the writes of blocks."""

from block_programs import control_program

from kvc.tools.reports.copies import describe_copies
from kvc.tools.reports.listing import describe_listing, listing_lines
from kvc.tools.reports.methods import describe_methods

WHOLE = control_program()


def test_a_listing_shows_blocks_beneath_what_runs_them():
    lines = listing_lines(describe_listing(WHOLE, WHOLE.methods[0]))
    heads = [line.split("|")[1].strip() for line in lines if "| block" in line]
    assert heads == [f"block {number}" for number in range(5)]
    assert any("|   %" in line and "aten::index_copy" in line for line in lines)


def test_a_write_in_a_branch_is_one_of_its_state():
    found = [(w.state, w.verdict, w.source) for w in describe_copies(WHOLE)]
    assert found == [("a", "SAFE", "model:2")]


def test_instructions_of_blocks_count():
    (report,) = describe_methods(WHOLE)
    graphs = WHOLE.methods[0].graphs
    assert report.instructions == sum(len(g.instructions) for g in graphs)
    assert len(graphs) == 6
