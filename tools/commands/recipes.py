"""`kvc recipes`: list the recipes that ship with kvc."""

import click

from kvc.tools.json_text import report_text


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def recipes(as_json: bool) -> None:
    """List the recipes.

    A recipe says how a model's numbers are stored and computed. `kvc compile
    --recipe` takes one of these names, or the path of a .toml file of your own; or
    several that differ in their backends, with commas between.

    Example: kvc compile demo --recipe cpu_q4
    """
    from kvc.recipes import known_recipes, load_recipe
    from kvc.tools.text import columns

    shipped = {name: load_recipe(name).description for name in known_recipes()}
    if as_json:
        click.echo(report_text("recipes", {"recipes": shipped}))
    else:
        click.echo("\n".join(columns(shipped.items(), indent=0)))
