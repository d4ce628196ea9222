"""Programs and their memory as text, as `kvc dump` and `kvc run --residency` print it.

`kvc.tools` lays the text out. Nothing else of the runtime asks that part, and this does
when a text is asked for, so that loading a program does not wait for it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from kvc.schema.container import BundleFile, StoredBlobs

if TYPE_CHECKING:
    from kvc.runtime.data.residency import Residency


def program_summary(stored: StoredBlobs) -> str:
    """Return the overview of an open bundle."""
    from kvc.tools.reports.bundle import describe_file
    from kvc.tools.reports.overview import overview_lines

    bundle = stored.files[0]
    assert isinstance(bundle, BundleFile)
    folders = [str(Path(file.path).parent) for file in stored.data_files]
    return "\n".join(overview_lines(describe_file(bundle, folders, by_method=False)))


def residency_summary(report: "Residency") -> str:
    """Return a report on memory as text."""
    from kvc.tools.reports.summaries import residency_lines

    return "\n".join(residency_lines(report))
