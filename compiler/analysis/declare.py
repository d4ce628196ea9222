"""Say on the IR what states are and what counts tokens, before any backend takes part.

In: the program that passes have made. Out: the same with the attributes of states and
methods, and with cursor values where index arithmetic said the same. Nothing after this
looks at how an operator is spelled to know what a state is.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvc.compiler.analysis.cursor_values import use_cursor
from kvc.compiler.analysis.cursors import Counting, find_countings
from kvc.compiler.analysis.flat import flatten
from kvc.compiler.analysis.states import describe_states
from kvc.compiler.in_place import prove_all
from kvc.compiler.ir import Method, Program
from kvc.schema.errors import CompileError


def declare(program: Program) -> Program:
    """Return the program with what the analysis finds.

    Raises:
        CompileError: what a method does with its position is ambiguous.
    """
    proofs = prove_all(program)
    methods = tuple(proofs[method.name].method for method in program.methods)
    flat = flatten(replace(program, methods=methods))
    countings = find_countings(flat)
    program = replace(
        program,
        states=describe_states(flat, countings),
        cursors=tuple(counting.position for counting in countings),
        methods=tuple(_declared(method, countings) for method in program.methods),
    )
    for number, counting in enumerate(countings):
        program = use_cursor(program, number, counting.places)
    return program


def _declared(method: Method, countings: Sequence[Counting]) -> Method:
    found = []
    for number, counting in enumerate(countings):
        if method.name in counting.advances:
            row_lengths = counting.row_lengths.get(method.name)
            lengths = "" if row_lengths is None else method.input_names[row_lengths]
            found.append((number, counting.advances[method.name], lengths))
    counted = sorted({lengths for *_, lengths in found if lengths})
    if sum(bool(lengths) for *_, lengths in found) > 1:
        message = (
            f"method {method.name} advances two positions by counts of tokens of each "
            f"row ({', '.join(counted)}): at most one of its positions may have such "
            "counts, give each cache a method of its own"
        )
        raise CompileError(message=message)
    return replace(method, advances=tuple(found))
