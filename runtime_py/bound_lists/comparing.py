"""`check_lists`: whether the bound lists of a program are what binding makes of it."""

from dataclasses import replace

from kvc.runtime.bound_lists.binding import bind_program
from kvc.runtime.native.library import native_library
from kvc.schema.bounds import BoundList, Bounds
from kvc.schema.errors import BadProgram
from kvc.schema.identity import identity
from kvc.schema.model import Program


def check_lists(path: str, program: Program) -> str:
    """Bind a verified program again, and compare its bound lists with the result.

    Args:
        path: the path of the bundle, for messages.
        program: the program with all its recipes.

    Returns:
        Why the lists could not be compared, "" if they were, or there are none.

    Raises:
        BadProgram: a list differs from what binding makes.
    """
    found = program.bounds
    if found is None:
        return ""
    if bytes.fromhex(identity(program)) != found.identity:
        what = "they name another identity than the program's"
        raise BadProgram(path=path, where="bound lists", what=what)
    library = native_library()
    if library is None:
        return "the native library is missing"
    if library.version != found.kernels_version:
        return f"they are for version {found.kernels_version} of the kernels"
    made, _ = bind_program(replace(program, bounds=None))
    made = None if made is None else replace(made, identity=found.identity)
    if made != found:
        raise BadProgram(
            path=path, where=_place(program, found, made), what="binding makes others"
        )
    return ""


def _place(program: Program, found: Bounds, made: Bounds | None) -> str:
    """Return the name of the first list that differs."""
    others = () if made is None else made.lists
    for number, one in enumerate(found.lists):
        if number >= len(others) or others[number] != one:
            return f"bound list {number}, of method {_method(program, one)!r}"
    return "bound lists"


def _method(program: Program, one: BoundList) -> str:
    return program.methods[one.method].name
