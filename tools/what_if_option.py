"""`kvc compile --what-if`: what a bundle would take with other settings.

In: a bundle, and the text of the option. Out: lines on stdout; nothing is written.
"""

import click
from click.core import ParameterSource

from kvc.tools.amounts import sizes_of


def print_what_if(bundle: str, settings: str, at: str | None) -> None:
    """Say what a bundle would take with other settings.

    Raises:
        KvcError: there is no such recipe or size, or the bundle cannot be read.
    """
    from kvc.schema.container import BundleFile
    from kvc.tools.reports.files import describe_file
    from kvc.tools.reports.footprint import describe_footprint
    from kvc.tools.reports.what_if import describe_what_if, what_if_lines
    from kvc.tools.terminal import show

    _refuse_others()
    recipe, cache = _wish(settings)
    with BundleFile.open(bundle) as file:
        disk = describe_file(file, (), by_method=False).cost.disk
        found = describe_footprint(file.program, sizes_of(at))
        show(what_if_lines(describe_what_if(file.program, disk, found, recipe, cache)))


def _refuse_others() -> None:
    """Refuse options that nothing comes of beside --what-if."""
    context = click.get_current_context()
    for param in context.command.params:
        name = param.name or ""
        source = context.get_parameter_source(name)
        given = source not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
        if given and name not in ("model", "what_if", "at"):
            raise click.UsageError(
                f"--what-if writes nothing: leave {param.opts[-1]} out"
            )


def _wish(text: str) -> tuple[str, str]:
    """Return the recipe and the dtype of caches of `recipe=NAME,cache=DTYPE`."""
    parts = [part.strip().partition("=") for part in text.split(",")]
    found = {name: value for name, _, value in parts if value}
    if len(found) < len(parts) or not found.keys() <= {"recipe", "cache"}:
        raise click.BadParameter(
            f"expected recipe=NAME, cache=DTYPE or both, found {text!r}",
            param_hint="--what-if",
        )
    return found.get("recipe", ""), found.get("cache", "")
