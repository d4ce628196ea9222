"""Numbers as values of options; what is none is told in plain words."""

import click


class WholeNumber(click.IntRange):
    """A whole number, from `min` to `max`."""

    name = "whole number"


class Number(click.FloatRange):
    """A number, from `min` to `max`."""

    name = "number"
