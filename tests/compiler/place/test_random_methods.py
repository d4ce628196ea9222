"""Random methods: the order that is proven is right, wrong ones are refused."""

import pytest
import torch
from interpreter import interpret, run_in_memory
from random_methods import random_program, random_tensors, reordered

from kvc.compiler.emit.graph import emit_graph
from kvc.compiler.ir.verify import verify
from kvc.compiler.place import prove
from kvc.schema.errors import PlanFailed
from kvc.schema.graph import Graph, Ref
from kvc.schema.verify.memory import sweep
from kvc.schema.verify.replay import Conflict, replay

STATE_IDS = {"a": 0, "b": 1, "c": 2}
SIZE = 100
BATCHES = [
    pytest.param(i, marks=pytest.mark.exhaustive) if i >= 8 else i for i in range(200)
]


def proven(seed):
    program = random_program(seed)
    return program, prove(program.methods[0], program)


def equal(found, wanted):
    outputs = all(map(torch.equal, found[0], wanted[0]))
    states = all(torch.equal(found[1][n], wanted[1][n]) for n in wanted[1])
    inputs = all(torch.equal(found[2][n], wanted[2][n]) for n in wanted[2])
    return outputs and states and inputs


def operands(graph: Graph):
    return [tuple(_values(step.arguments)) for step in graph.instructions]


def _values(arguments):
    for argument in arguments:
        items = argument if isinstance(argument, tuple) else (argument,)
        yield from (item.value for item in items if isinstance(item, Ref))


@pytest.mark.parametrize("batch", BATCHES)
def test_a_proven_order_gives_what_the_method_means(batch):
    for seed in range(batch * SIZE, (batch + 1) * SIZE):
        program, proof = proven(seed)
        inputs, states = random_tensors(seed)
        wanted = interpret(program.methods[0], inputs, states)
        assert equal(run_in_memory(proof.method, inputs, states), wanted), seed


def test_a_proven_program_is_well_formed_and_passes_both_checks_of_memory():
    for seed in range(SIZE):
        program, proof = proven(seed)
        verify(type(program)((), (), program.states, (proof.method,)))
        graph = emit_graph(proof.method, {}, STATE_IDS, ())
        sweep(graph, operands(graph))
        replay(graph, operands(graph))


def accepts(check, made):
    """Tell whether a method can be emitted and passes a check of memory."""
    try:
        graph = emit_graph(made, {}, STATE_IDS, ())
        check(graph, operands(graph))
    except (PlanFailed, Conflict):
        return False
    return True


@pytest.mark.parametrize("batch", BATCHES)
def test_an_order_that_would_go_wrong_is_refused_by_both_checks(batch):
    wrong = 0
    for seed in range(batch * SIZE, (batch + 1) * SIZE):
        _, proof = proven(seed)
        mutant = reordered(proof.method, seed)
        inputs, states = random_tensors(seed)
        right = equal(
            run_in_memory(mutant, inputs, states), interpret(mutant, inputs, states)
        )
        assert accepts(sweep, mutant) == accepts(replay, mutant), seed
        assert right or not accepts(sweep, mutant), seed
        wrong += not right
    assert wrong > SIZE // 20  # mutants do go wrong


def test_a_second_proof_changes_nothing():
    for seed in range(SIZE):
        program, proof = proven(seed)
        again = prove(proof.method, program)
        assert again.method == proof.method, seed
