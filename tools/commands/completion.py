"""`kvc completion`: the script that lets a shell complete what is typed after kvc."""

import click
from click.shell_completion import get_completion_class


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
