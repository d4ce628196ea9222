"""Exit codes of commands that answer a question, as those of grep and diff.

0 is the good answer, 1 the bad one: different, damaged, not all removed. 2 says that
there is no answer, since a file could not be read or run; click uses it for wrong
options, too. Other commands end with 1 where they fail.
"""

from typing import Final, NoReturn

import click

from kvc.schema.errors import KvcError
from kvc.schema.text import escape

BAD: Final = 1
TROUBLE: Final = 2


def tell(error: KvcError) -> None:
    """Print an error as it ends a command, and go on."""
    click.ClickException(escape(str(error), keep="\n")).show()


def end_in_trouble(error: KvcError) -> NoReturn:
    """Print an error, and end: there is no answer.

    Raises:
        Exit: always.
    """
    tell(error)
    raise click.exceptions.Exit(TROUBLE) from error
