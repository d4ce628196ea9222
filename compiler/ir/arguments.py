"""Are the arguments of a call of the kinds that its op takes?"""

from collections.abc import Iterator

from kvc.compiler.ir.graph import Argument, Item, Value
from kvc.compiler.ir.text import argument_text
from kvc.schema.dtypes import DType
from kvc.schema.ops import OpSpec, Param, ParamKind
from kvc.schema.types import Affine


def argument_faults(spec: OpSpec, arguments: tuple[Argument, ...]) -> Iterator[str]:
    """Yield what is wrong with arguments, one for each of the op's parameters."""
    for param, argument in zip(spec.params, arguments, strict=True):
        if argument is None and param.optional:
            continue
        if param.is_list != isinstance(argument, tuple):
            wanted = "be" if param.is_list else "not be"
            yield f"{param.name} must {wanted} a list"
            continue
        for item in argument if isinstance(argument, tuple) else (argument,):
            if not _accepts(param, item):
                text = argument_text(item)
                yield f"{param.name} must be {param.kind.value}, not {text}"


def _accepts(param: Param, item: Item) -> bool:
    if item is None:
        return param.optional_items
    number = isinstance(item, int | Affine) and not isinstance(item, bool | DType)
    match param.kind:
        case ParamKind.TENSOR:
            return isinstance(item, Value)
        case ParamKind.INT:
            return number
        case ParamKind.FLOAT:
            return isinstance(item, float) or (number and isinstance(item, int))
        case ParamKind.BOOL:
            return isinstance(item, bool)
        case ParamKind.STR:
            return isinstance(item, str)
        case ParamKind.DTYPE:
            return isinstance(item, DType)
        case ParamKind.SCALAR:
            return number or isinstance(item, float | bool)
