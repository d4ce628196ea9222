"""The compiler's intermediate representation (IR): immutable programs in SSA form."""

from kvc.compiler.ir.graph import (
    Argument,
    Constant,
    Item,
    Method,
    Node,
    Program,
    State,
    Value,
    bound_to,
    map_argument,
    values_in,
)

__all__ = [
    "Argument",
    "Constant",
    "Item",
    "Method",
    "Node",
    "Program",
    "State",
    "Value",
    "bound_to",
    "map_argument",
    "values_in",
]
