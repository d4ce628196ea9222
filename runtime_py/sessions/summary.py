"""Format the summary of a program: a line each for recipe, methods, states, data.

In: a loaded program. Out: the text that `print(program)` prints. `kvc dump` has more
details.
"""

from kvc.schema.adapters import slots_text
from kvc.schema.model import Method, Program
from kvc.schema.text import columns, escape, plural, size


def program_summary(path: str, program: Program) -> str:
    """Return the summary of a bundle's running program."""
    origin, nbytes = program.provenance, sum(blob.nbytes for blob in program.blobs)
    blobs, adapters = plural(len(program.blobs), "blob"), slots_text(program)
    called = (method for method in program.methods if method.adapts is None)
    rows = [
        ("recipe", escape(origin.recipe)),
        *(("method", _method(method)) for method in called),
        ("state", _states(program)),
        ("data", f"{blobs} of {size(nbytes)}, each stored once"),
        *([("adapters", f"room for {adapters}")] if adapters else []),
        ("made by", escape(f"kvc {origin.kvc_version} (torch {origin.torch_version})")),
    ]
    return "\n".join([escape(path), *columns(rows)])


def _method(method: Method) -> str:
    role = f", {method.role}" if method.role and method.role != method.name else ""
    return escape(f"{method.name}({', '.join(method.input_names)}){role}")


def _states(program: Program) -> str:
    if not program.states:
        return "none; every call stands alone"
    symbols = {symbol.name: symbol for symbol in program.symbols}
    nbytes = sum(state.type.max_nbytes(symbols) for state in program.states)
    return f"{plural(len(program.states), 'tensor')}, at most {size(nbytes)} a session"
