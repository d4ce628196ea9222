"""What grows in a branch is a state, or an array, that may: broken check by check."""

from dataclasses import replace

import pytest
from block_programs import changed_step, with_method
from branching_caches import Merged, merged_method

from kvc.compiler import compile_program
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Alias, Graph, Ref, Scratch
from kvc.schema.model import Program, StateKind
from kvc.schema.ops import COND
from kvc.schema.types import affine
from kvc.schema.verify import verify_program

PAST = affine(0, {"past": 1})


@pytest.fixture(scope="module")
def merged(tmp_path_factory) -> Program:
    """A state that grows along axis 2 in a branch, by [2, 1, seq, 4]."""
    path = tmp_path_factory.mktemp("merged") / "model.kvc"
    compile_program(Merged().eval(), [merged_method()], "fp32").save(path)
    with BundleFile.open(path) as bundle:
        return bundle.program


def full(graph: Graph) -> Graph:
    """Return code to which the state always has all of its rows."""
    rows = {PAST: 48, affine(0, {"past": 1, "seq": 1}): affine(48, {"seq": 1})}
    values = tuple(
        replace(one, type=replace(one.type, dims=tuple(rows.get(d, d) for d in dims)))
        for one, dims in ((each, each.type.dims) for each in graph.values)
    )
    steps = tuple(step for step in graph.instructions if step.op != "kvc::check_size")
    return replace(graph, values=values, instructions=steps)


def test_a_state_that_does_not_grow_does_not_in_a_branch_either(merged):
    (state,), (method,) = merged.states, merged.methods
    first, second = (replace(each, graph=full(each.graph)) for each in method.blocks)
    # The second has lost its first step, which asked how long the state is.
    blocks = first, replace(second, updates=first.updates)
    other = replace(
        with_method(merged, graph=full(method.graph), blocks=blocks, advances=()),
        cursors=(),
        states=(replace(state, kind=StateKind.PLAIN, axis=None, cursor=None),),
    )
    with pytest.raises(BadProgram, match=r"does not grow along \[2\]"):
        verify_program(other, "x")


def test_scratch_memory_does_not_grow_in_a_branch(merged):
    graph = merged.methods[0].graph
    steps = graph.instructions
    at = next(i for i, step in enumerate(steps) if step.op == COND)
    new, old = steps[at].arguments[3]
    kind = graph.values[old.value].type
    size = kind.max_nbytes({one.name: one for one in merged.symbols})
    space = Scratch(graph.scratch_nbytes, size)
    copy = replace(graph.values[old.value], storage=space)
    place = len(graph.values)
    named = (*steps[at].arguments[:3], (new, Ref(place)), *steps[at].arguments[4:])
    graph = changed_step(graph, at, arguments=named)
    values = list(graph.values)
    whole = steps[at].results[0]
    values[whole] = replace(values[whole], storage=Alias(place))
    clone = replace(steps[at], op="aten::clone", arguments=(old,), results=(place,))
    graph = replace(
        graph,
        values=(*values, copy),
        instructions=(*graph.instructions[:at], clone, *graph.instructions[at:]),
        scratch_nbytes=graph.scratch_nbytes + size,
    )
    with pytest.raises(BadProgram, match=rf"value {place} grows along \[2\]"):
        verify_program(with_method(merged, graph=graph, writes=(), updates=()), "x")
