"""Make the sample calls of a new bundle: `kvc compile --check`."""

import tempfile
from pathlib import Path

from kvc.compiler import Bundle
from kvc.runtime import load
from kvc.schema.container import Progress
from kvc.tools.checks.calls import sample_results
from kvc.tools.checks.expected import FILE, compare, expected_file


def with_results(bundle: Bundle, progress: Progress) -> Bundle:
    """Return a bundle that also holds what sample calls of it give.

    They are made twice, by the libraries of the backends that are here, and by the
    reference implementation of their arithmetic: a bundle in which these do not agree
    is wrong already.

    Args:
        bundle: which is written to a temporary folder for this.
        progress: told of each stage.

    Raises:
        CheckFailed: libraries and reference do not agree.
        KvcError: it cannot be written there, or no session can be opened.
    """
    with tempfile.TemporaryDirectory(prefix="kvc-check-") as folder:
        path = Path(folder) / "bundle.kvc"
        bundle.save(path, progress=progress)
        progress("sample calls", 0, 0)
        with load(path, reference=True) as program:
            content = expected_file(sample_results(program))
        with load(path) as program:
            compare(content, sample_results(program))
    return bundle.with_files({FILE: content})
