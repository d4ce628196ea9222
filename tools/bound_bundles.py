"""`kvc compile --bind`: store the methods of a bundle as bound lists as well.

In: a bundle that is not saved yet. Out: the same bundle with bound lists, where its
methods can have them, and a warning if they were asked for and a method has none.
"""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvc.compiler import Bundle
    from kvc.schema.container import Progress


def with_bounds(bundle: "Bundle", progress: "Progress", wanted: bool) -> "Bundle":
    """Return a bundle with bound lists.

    Args:
        bundle: the bundle, which stays unchanged.
        progress: as in `Bundle.save`.
        wanted: whether to warn of each method that has no list.
    """
    from kvc.runtime.bound_lists import bind_program

    progress("bind", 0, 0)
    bounds, refused = bind_program(bundle.program)
    if wanted:
        for method, reason in refused.items():
            text = f"warning: the method {method} has no bound list: {reason}"
            click.echo(text, err=True)
    return bundle.with_bounds(bounds)
