"""Make the sample calls of a new bundle: `kvc compile --check`."""

import tempfile
from pathlib import Path

from kvc.compiler import Bundle
from kvc.runtime import load
from kvc.schema.container import Progress
from kvc.schema.errors import NoCheck
from kvc.tools.checks.calls import sample_results
from kvc.tools.checks.expected import FILE, compare, expected_file


def with_results(bundle: Bundle, progress: Progress) -> Bundle:
    """Return a bundle that also holds what sample calls of it give.

    They are made twice, by the libraries of the backends that are here, and by the
    reference implementation of their arithmetic: a bundle in which these do not agree
    is wrong already. Of a bundle for several backends all must agree with the
    first, but those with other buckets.

    Args:
        bundle: which is written to a temporary folder for this.
        progress: told of each stage.

    Raises:
        NoCheck: no method can be called with made-up arguments.
        CheckFailed: libraries and reference do not agree.
        KvcError: it cannot be written there, or no session can be opened.
    """
    with tempfile.TemporaryDirectory(prefix="kvc-check-") as folder:
        path = Path(folder) / "bundle.kvc"
        bundle.save(path, progress=progress)
        progress("sample calls", 0, 0)
        with load(path, reference=True) as program:
            results = list(sample_results(program))
        if all(isinstance(given, str) for _, given in results):
            told = ", ".join(f"{name}: {given}" for name, given in results)
            reason = f"no method takes made-up arguments ({told}); leave --check out"
            raise NoCheck(reason=reason)
        content = expected_file(results)
        for backend in _backends(bundle):
            with load(path, backend=backend) as program:
                compare(content, sample_results(program))
    return bundle.with_files({FILE: content})


def _backends(bundle: Bundle) -> list[str | None]:
    """Return the backends to ask for, so that each recipe of a bundle runs once.

    Sample calls of a recipe with other buckets would be others.
    """
    program = bundle.program
    if not program.variants:
        return [None]
    alike = [body for body in program.bodies if body.symbols == program.symbols]
    return [body.backends[0] for body in alike]
