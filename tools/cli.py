"""The `kvc` command: the group of commands, and what they have in common.

Any `KvcError` becomes one paragraph on stderr and exit code 1. Ctrl-C ends with 130
and a closed pipe with 141, both without a word, as shells expect. Everything else is
a bug and shows its traceback.
"""

import os
import sys

import click

from kvc.schema.errors import KvcError
from kvc.tools.commands.compile import compile_command
from kvc.tools.commands.dump import dump
from kvc.tools.commands.generate import generate
from kvc.tools.commands.recipes import recipes
from kvc.tools.commands.run import run
from kvc.tools.commands.verify import verify
from kvc.tools.text import escape

INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + SIGINT, 128 + SIGPIPE


class Commands(click.Group):
    """A group whose commands end as described above, listed in the order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command and turn what it raises into an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe shows here rather than at exit
        except KvcError as error:
            failure = click.ClickException(escape(str(error), keep="\n"))
            raise failure from error
        except KeyboardInterrupt:
            click.echo(err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # What is left in the buffer has nowhere to go; let exit find no fault.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        return result


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        import importlib.metadata

        click.echo(f"kvc {importlib.metadata.version('kvc')}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Compile models that carry state into one file, look inside it, and run it."""


for _command in (compile_command, dump, generate, run, verify, recipes):
    main.add_command(_command)
