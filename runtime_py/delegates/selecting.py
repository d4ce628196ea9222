"""Select which of a bundle's recipes runs on this machine.

In: the program of a bundle, and the caller's request. Out: the program of one of the
bundle's recipes. For a bundle with a single recipe, nothing is checked.
"""

from kvc.runtime.delegates.table import Ready, how_ready
from kvc.schema.errors import BadSetting, listing
from kvc.schema.model import Program


def choose_body(
    program: Program, backend: str | None, device: str | None, reference: bool | None
) -> Program:
    """Return the program of one recipe: the requested one, or the first that can run.

    A recipe can run if the libraries and devices of its backends are present. Recipes
    that run on hardware come first, then recipes whose only device is emulated in
    software, then recipes that need the reference. With `reference`, the first
    requested recipe is returned without these checks.

    Args:
        program: the verified program.
        backend: the first backend of the recipe; None for any.
        device: `BACKEND:NUMBER`, which also requests this backend; None for any.
        reference: as in `load`.

    Raises:
        BadSetting: the bundle has no recipe for this backend.
    """
    bodies = program.bodies if backend is None else bodies_for(program, backend)
    if device is not None:
        asked = str(device).partition(":")[0]
        bodies = tuple(one for one in bodies if asked in one.backends) or bodies
    if len(bodies) == 1 or reference:
        return bodies[0]
    found: list[tuple[Ready, int]] = []
    for number, body in enumerate(bodies):
        ready = max(map(how_ready, body.backends), default=Ready.YES)
        if ready is Ready.YES:
            return body
        found.append((ready, number))
    return bodies[min(found)[1]]


def bodies_for(program: Program, backend: str) -> tuple[Program, ...]:
    """Return the programs of the recipes whose first backend is `backend`.

    Raises:
        BadSetting: no recipe of the bundle has `backend` as its first backend.
    """
    found = tuple(one for one in program.bodies if one.backends[:1] == (backend,))
    if not found:
        known = [name for one in program.bodies for name in one.backends[:1]]
        expected = f"a backend that the bundle has a recipe for, here {listing(known)}"
        raise BadSetting(name="backend", expected=expected, found=repr(backend))
    return found
