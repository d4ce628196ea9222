"""An entry of the operator table: parameters, results, aliasing and shape rule.

Signatures are written as text, `aten::cat(Tensor[] tensors, int dim) -> Tensor`, and
parsed once. Parameter kinds are Tensor, int, float, bool, str, dtype and Scalar (int,
float or bool). Each kind may be optional (`?`) or a list (`[]`); a list of tensors may
have missing items (`?[]`). A number may have a default, `int name=0`; a compiler pass
uses the default when it makes an instruction and does not set the parameter.
"""

import re
from collections.abc import Callable
from enum import Enum
from functools import cache

from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.types import TensorType


class Aliasing(Enum):
    """How an operator's results relate to the memory of its first operand."""

    FRESH = "fresh"  # own memory
    VIEW = "view"  # each result is a view of operand 0
    UPDATE = "update"  # operand 0 with elements replaced; may be written over it
    CONTROL = "control"  # runs blocks: the argument `over` maps results to operands
    CHECK = "check"  # no results: raises where its operands break a rule


class Keeps(Enum):
    """How the results contain copies of the elements of operand 0."""

    ALL = "all, in their order"
    PERMUTED = "all, with axes in another order"
    SOME = "each at the most once, in their order"
    REPEATED = "each perhaps several times"


class ParamKind(Enum):
    """The kind of value that a parameter accepts."""

    TENSOR = "Tensor"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    STR = "str"
    DTYPE = "dtype"
    SCALAR = "Scalar"


@frozen
class Param:
    """One parameter of an operator.

    `is_list` allows a tuple of items. `optional` allows None, for a list as a whole;
    `optional_items` allows None as an item of a list.
    """

    name: str
    kind: ParamKind
    optional: bool = False
    is_list: bool = False
    optional_items: bool = False
    default: int | None = None


ConcreteItem = TensorType | int | float | bool | str | DType | None
Concrete = ConcreteItem | tuple[ConcreteItem, ...]
Inferred = tuple[
    DType | None, tuple[int, ...]
]  # dtype None: any dtype that the result can be cast to
ShapeRule = Callable[..., tuple[Inferred, ...]]


class ShapeMismatch(ValueError):
    """Arguments do not fit the operator; the text of the error has the reason."""


@frozen
class OpSpec:
    """An operator that programs may use.

    Attributes:
        name: full name with overload, `aten::add.Tensor`.
        params: the parameters in order; a program gives an argument for each.
        variadic: whether the number of results depends on the arguments.
        aliasing: how the results relate to the memory of operand 0.
        rule: computes the dtype and shape of each result from concrete arguments;
            raises `ShapeMismatch` if they do not fit.
        pointwise: whether each element of the result depends only on the operands'
            elements at the same index, so that the result may be written over an
            operand of the same type.
        keeps: how results contain copies of the elements of operand 0; None if they
            contain no copies.
        halves: whether the rule splits rows in halves; the width of such rows must be
            the same in all calls.
    """

    name: str
    params: tuple[Param, ...]
    variadic: bool
    aliasing: Aliasing
    rule: ShapeRule
    pointwise: bool = False
    keeps: Keeps | None = None
    halves: bool = False


_SIGNATURE = re.compile(r"(?P<name>[\w:.]+)\((?P<params>.*)\) -> (?P<results>.+)")
_PARAM = re.compile(
    r"(?P<kind>[A-Za-z]+)(?P<suffix>[?\[\]]*) (?P<name>\w+)(?:=(?P<default>\d+))?"
)


def parse(
    signature: str,
    rule: ShapeRule,
    aliasing: Aliasing,
    pointwise: bool = False,
    keeps: Keeps | None = None,
    halves: bool = False,
) -> OpSpec:
    """Return the operator with this signature, shape rule and other properties."""
    match = _SIGNATURE.fullmatch(signature)
    assert match, signature
    texts = match["params"].split(", ") if match["params"] else []
    return OpSpec(
        name=match["name"],
        params=tuple(_parse_param(text) for text in texts),
        variadic=match["results"] == "Tensor[]",
        aliasing=aliasing,
        rule=rule,
        pointwise=pointwise,
        keeps=keeps,
        halves=halves,
    )


@cache
def _parse_param(text: str) -> Param:
    match = _PARAM.fullmatch(text)
    assert match, text
    items, bracket, whole = match["suffix"].partition("[]")
    return Param(
        name=match["name"],
        kind=ParamKind(match["kind"]),
        optional=whole == "?" if bracket else items == "?",
        is_list=bool(bracket),
        optional_items=bool(bracket) and items == "?",
        default=None if match["default"] is None else int(match["default"]),
    )
