"""The `kvc` command: the group of commands, and how all of them end.

Any `KvcError` becomes one paragraph on stderr and exit code 1, and so does a stdout
that is closed or full. Ctrl-C ends with 130 and a closed pipe with 141, both without a
message, as shells expect. Everything else is a bug and shows its traceback.
"""

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from kvc.schema.errors import KvcError
from kvc.schema.text import escape
from kvc.tools.commands.adapter import make_adapter
from kvc.tools.commands.batch import batch
from kvc.tools.commands.bench import bench
from kvc.tools.commands.chat import chat
from kvc.tools.commands.check import check_command
from kvc.tools.commands.compile import compile_command
from kvc.tools.commands.completion import complete_names, completion
from kvc.tools.commands.devices import devices
from kvc.tools.commands.diff import diff
from kvc.tools.commands.dump import dump
from kvc.tools.commands.embed import classify, embed
from kvc.tools.commands.eval import eval_command
from kvc.tools.commands.export import export
from kvc.tools.commands.gc import collect
from kvc.tools.commands.generate import generate
from kvc.tools.commands.profile import profile_command
from kvc.tools.commands.recipes import recipes
from kvc.tools.commands.run import run
from kvc.tools.commands.serve import serve
from kvc.tools.commands.split import join, split
from kvc.tools.commands.transcribe import transcribe
from kvc.tools.commands.verify import verify

INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + SIGINT, 128 + SIGPIPE
_WRITE_FAILED: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


class Commands(click.Group):
    """A group of commands that end as the module describes, listed in order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self.commands)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Parse the arguments; the options for help and version print and end here."""
        with _endings():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command, and turn an error that it raises into an exit code."""
        with _endings(), _plain_warnings():
            return super().invoke(ctx)


@contextmanager
def _endings() -> Iterator[None]:
    """Turn an exception of a command into a message and an exit code."""
    if sys.stdout is None:
        # A file that a command opens could get the number of stdout.
        raise click.ClickException("stdout is closed; redirect it to /dev/null instead")
    try:
        yield
        sys.stdout.flush()  # a closed pipe shows here rather than at exit
    except KvcError as error:
        raise click.ClickException(escape(str(error), keep="\n")) from error
    except KeyboardInterrupt:
        click.echo(err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _drop_output()
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except OSError as error:
        # Without a file name it comes from a stream that was open already.
        if error.errno not in _WRITE_FAILED or error.filename is not None:
            raise
        _drop_output()
        message = f"cannot write to stdout: {error.strerror}"
        raise click.ClickException(message) from error


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print kvc's own warnings as their message alone, without a line of source."""
    usual = warnings.formatwarning

    def text(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if category.__module__.startswith("kvc."):
            return "warning: " + escape(str(message), keep="\n") + "\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = text
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _drop_output() -> None:
    """Discard the rest of stdout's buffer, which Python could not write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        import kvc

        click.echo(f"kvc {kvc.__version__}\nkernels of the backend cpu: {_kernels()}")
        ctx.exit()


def _kernels() -> str:
    """Return which instruction set kvc's kernels use here, or why there are none."""
    from kvc.runtime.native.library import find_library
    from kvc.schema.errors import MissingLibrary

    try:
        return find_library().processor
    except MissingLibrary as error:
        return (
            f"none, since their library cannot be used: {error.reason}; get it with "
            f"`{error.install}`"
        )


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
    help="Show the version, and which kernels are here, and exit.",
)
def main() -> None:
    """Compile models that carry state into one file, look inside it, and run it."""


for _command in (
    compile_command,
    dump,
    diff,
    generate,
    batch,
    transcribe,
    embed,
    classify,
    chat,
    serve,
    eval_command,
    bench,
    profile_command,
    run,
    verify,
    check_command,
    make_adapter,
    split,
    join,
    export,
    collect,
    recipes,
    devices,
    completion,
):
    complete_names(_command)
    main.add_command(_command)
