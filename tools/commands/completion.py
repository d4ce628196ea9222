"""`kvc completion`: print a script with which a shell completes kvc's arguments.

Also the completions of arguments: names of files and of recipes. click itself completes
the names of commands and options.
"""

from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

_FILES: Final = (
    *("BUNDLE", "FILE", "FILE.npy", "MODEL", "MODEL.kvc", "NEW", "OLD"),
    *("OTHER.kvd", "OUT.kvc", "PATH", "WAV"),
)
_FOLDER: Final = "FOLDER"
_RECIPE: Final = "NAME|FILE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what lets SHELL complete commands, options, recipes and files of kvc.

    Add it to what the shell reads when it starts: ~/.bashrc (bash 4.4 or later),
    ~/.zshrc after compinit, or ~/.config/fish/completions/kvc.fish.

    Example: kvc completion bash >> ~/.bashrc
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    # The base class: that of bash would look for bash here, whose version it checks.
    script = kind(ctx.find_root().command, {}, "kvc", "_KVC_COMPLETE")
    click.echo(script.source_template % script.source_vars())


class _Name(click.types.StringParamType):
    """A text for which shells offer names of files or folders."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell offer files or folders."""
        return [CompletionItem(incomplete, type=self._kind)]


class _Recipe(click.types.StringParamType):
    """A text for which shells offer names of recipes, or files."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the recipes that begin with `incomplete`, or let the shell offer files.

        Of several recipes, separated by commas, complete the last.
        """
        from kvc.recipes import known_recipes

        before, comma, begun = incomplete.rpartition(",")
        names = [name for name in known_recipes() if name.startswith(begun)]
        items = [CompletionItem(before + comma + name) for name in names]
        return items or [CompletionItem(incomplete, type="file")]


def complete_names(command: click.Command) -> None:
    """Let shells complete a command's arguments and options, chosen by metavar."""
    for param in command.params:
        kind = _kind_of((param.metavar or "").removesuffix("..."))
        if kind is not None and param.type is click.STRING:
            param.type = kind


def _kind_of(metavar: str) -> click.types.StringParamType | None:
    if metavar == _RECIPE:
        return _Recipe()
    if metavar == _FOLDER:
        return _Name("dir")
    return _Name("file") if metavar in _FILES else None
