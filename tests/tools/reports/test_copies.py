from dataclasses import replace

from sample_programs import sample_program

from kvc.schema.model import Update
from kvc.tools.reports.copies import copy_lines, describe_copies


def with_updates(*updates):
    """Return the sample with other verdicts on the writes of decode."""
    program = sample_program()
    decode = replace(program.methods[1], updates=updates)
    return replace(program, methods=(program.methods[0], decode))


def test_updates_over_the_state_are_safe():
    updates = describe_copies(sample_program())
    assert {update.verdict for update in updates} == {"SAFE"}
    assert copy_lines(updates)[-1] == "  4 updates of states, all in place"


def test_a_verdict_with_copies_counts_the_bytes_of_their_results():
    first, *rest = sample_program().methods[1].updates
    copied = Update(first.instruction, "why", (first.instruction,))
    found = describe_copies(with_updates(copied, *rest))
    copies = [u for u in found if u.verdict == "COPY"]
    assert [(u.method, u.state, u.bytes_per_call) for u in copies] == [
        ("decode", "cache", 512)
    ]
    assert copies[0].reason == "why"
    assert copy_lines(copies)[-1].startswith("  1 update of states, 1 by copy: 512 B")
