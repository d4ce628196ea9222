"""Record on the IR what states are and what counts tokens, before any backend.

In: the program after the passes. Out: the same with the attributes of states and
methods, and with cursor values in place of equivalent index arithmetic. Nothing after
this looks at operators to find out what a state is.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvc.compiler.analysis.cursor_fields import with_places
from kvc.compiler.analysis.cursor_values import use_cursors
from kvc.compiler.analysis.cursors import Counting, find_countings, find_places
from kvc.compiler.analysis.flat import FlatMethod, flatten
from kvc.compiler.analysis.states import describe_states
from kvc.compiler.ir import Method, Program
from kvc.compiler.place import prove_all
from kvc.schema.errors import CompileError


def declare(program: Program) -> Program:
    """Return the program with what the analysis finds.

    Raises:
        CompileError: what a method does with its position is ambiguous.
    """
    proofs = prove_all(program)
    methods = tuple(proofs[method.name].method for method in program.methods)
    flat = _with_places(program, flatten(replace(program, methods=methods)))
    countings = find_countings(program, flat)
    program = replace(
        program,
        states=describe_states(program, flat, countings),
        cursors=tuple(counting.cursor for counting in countings),
        methods=tuple(_declared(method, countings) for method in program.methods),
    )
    views = {
        method.name: tuple(counting.view(method, program) for counting in countings)
        for method in flat
    }
    return use_cursors(program, views)


def _with_places(
    program: Program, methods: Sequence[FlatMethod]
) -> tuple[FlatMethod, ...]:
    places = find_places(program, methods)
    return tuple(with_places(m) if m.name in places else m for m in methods)


def _declared(method: Method, countings: Sequence[Counting]) -> Method:
    found = []
    for number, counting in enumerate(countings):
        step = counting.steps.get(method.name)
        if step is not None:
            lengths = ""
            if step.lengths is not None:
                lengths = method.input_names[method.inputs.index(step.lengths)]
            found.append((number, step.tokens, lengths))
    counted = sorted({lengths for *_, lengths in found if lengths})
    if sum(bool(lengths) for *_, lengths in found) > 1:
        message = (
            f"method {method.name} advances two positions by row lengths "
            f"({', '.join(counted)}): at most one of its positions may have row "
            "lengths; give each cache a method of its own"
        )
        raise CompileError(message=message)
    return replace(method, advances=tuple(found))
