from dataclasses import replace

from sample_programs import sample_program, with_graph

from kvc.schema.model import Alias, Scratch, Value
from kvc.tools.reports.copies import copy_lines, describe_copies


def test_updates_over_the_state_are_safe():
    updates = describe_copies(sample_program())
    assert {update.verdict for update in updates} == {"SAFE"}
    assert copy_lines(updates)[-1] == "  4 updates of states, all in place"


def test_an_update_with_memory_of_its_own_is_a_copy():
    program = sample_program()
    graph = program.methods[1].graph
    call = next(i for i in graph.instructions if i.op == "kvc::cache_update")
    values = list(graph.values)
    made = values[call.results[0]]
    assert isinstance(made.storage, Alias)
    values[call.results[0]] = Value(made.type, Scratch(0, 512))
    program = with_graph(program, 1, replace(graph, values=tuple(values)))
    found = [u for u in describe_copies(program) if u.verdict == "COPY"]
    assert [(u.method, u.state, u.bytes_per_call) for u in found] == [
        ("decode", "cache", 512)
    ]
    assert copy_lines(found)[-1].startswith("  1 update of states, 1 by copy: 512 B")
