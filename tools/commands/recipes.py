"""`kvc recipes`: list the recipes that ship with kvc, by the device they run on."""

from dataclasses import asdict

import click

from kvc.tools.printing import report_text, show


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def recipes(as_json: bool) -> None:
    """List the recipes.

    A recipe says how a model's numbers are stored and computed. `kvc compile
    --recipe` takes one of these names, or the path of a .toml file of your own; or
    several that differ in their backends, with commas between.

    Recipes are listed by what they run on: what can run here, and what to install
    for the others.

    Example: kvc compile demo --recipe cpu_q4
    """
    from kvc.tools.reports.recipes import describe_recipes, recipe_lines

    groups = describe_recipes()
    if as_json:
        shipped = {n: d for group in groups for n, d in group.recipes.items()}
        known = dict(sorted(shipped.items()))
        devices = [asdict(group) for group in groups]
        click.echo(report_text("recipes", {"recipes": known, "devices": devices}))
    else:
        show(recipe_lines(groups))
