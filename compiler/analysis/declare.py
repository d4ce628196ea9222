"""Say on the IR what states are and what counts tokens, before any backend takes part.

In: the program that passes have made. Out: the same with the attributes of states and
methods, and with cursor values where index arithmetic said the same. Nothing after this
looks at how an operator is spelled to know what a state is.
"""

from dataclasses import replace

from kvc.compiler.analysis.cursor_values import use_cursor
from kvc.compiler.in_place import prove_all
from kvc.compiler.in_place.flat import flatten
from kvc.compiler.ir import Method, Program
from kvc.compiler.positions import Counting, find_counting
from kvc.compiler.states import describe_states


def declare(program: Program) -> Program:
    """Return the program with what the analysis finds.

    Raises:
        CompileError: what a method does with its position is ambiguous.
    """
    proofs = prove_all(program)
    methods = tuple(proofs[method.name].method for method in program.methods)
    flat = flatten(replace(program, methods=methods))
    counting = find_counting(flat)
    cursors = () if counting.position is None else (counting.position,)
    program = replace(
        program,
        states=describe_states(flat, counting),
        cursors=cursors,
        methods=tuple(_declared(method, counting) for method in program.methods),
    )
    return use_cursor(program, counting.places) if cursors else program


def _declared(method: Method, counting: Counting) -> Method:
    tokens = counting.advances.get(method.name)
    if tokens is None:
        return method
    counts = counting.counts.get(method.name)
    lengths = "" if counts is None else method.input_names[counts]
    return replace(method, advances=((0, tokens, lengths),))
