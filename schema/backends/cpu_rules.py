"""Rules on the operands of kvc's own kernels: which dtypes and ranks they accept.

`kvc.schema.backends.cpu` and the lists beside it give each operator one of these rules.
"""

from typing import Final

from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    operand,
    operands_of,
)
from kvc.schema.dtypes import DType
from kvc.schema.types import Dim, TensorType

MAX_RANK: Final = 8
MAX_SHARE: Final = 24  # query heads for one head of keys

FLOATS: Final = (DType.FLOAT32, DType.FLOAT64)
INDEX: Final = (DType.INT32, DType.INT64)
NUMBERS: Final = (*FLOATS, *INDEX)
NARROW: Final = (DType.INT16, DType.INT8, DType.UINT8)
INTEGERS: Final = (*INDEX, *NARROW)
REALS: Final = (*FLOATS, *INTEGERS)
ALL: Final = (*REALS, DType.BOOL)


def computed(*dtypes: DType) -> Rule:
    """Return a rule for operators whose operands are cast to the result's dtype.

    The rule accepts results of the given dtypes, and operands that can be cast to the
    result's dtype.
    """

    def rule(arguments: Arguments, results: Results) -> str:
        found = {each.type.dtype for each in operands_of(arguments)}
        (made,) = results
        known = made.dtype in dtypes and found <= {*ALL}
        narrowed = made.dtype not in FLOATS and found & {*FLOATS}
        if not known or narrowed:
            return takes_none_of({*found, made.dtype})
        return _unfit(arguments, made.dtype)

    return rule


def alike(*dtypes: DType) -> Rule:
    """Return a rule that accepts operands and results of one dtype out of `dtypes`."""

    def rule(arguments: Arguments, results: Results) -> str:
        found = {each.type.dtype for each in operands_of(arguments)}
        found |= {each.dtype for each in results}
        if len(found) != 1 or not found <= {*dtypes}:
            return takes_none_of(found)
        return _unfit(arguments, *found)

    return rule


def _unfit(arguments: Arguments, dtype: DType) -> str:
    """Return why a number among the arguments cannot be of the dtype, or ""."""
    if dtype not in ALL or dtype in FLOATS:
        return ""
    numbers = [each for each in arguments if isinstance(each, int | float)]
    if any(isinstance(number, float) for number in numbers):
        return "a fraction beside integers"
    least, most = (0, 1) if dtype is DType.BOOL else _bounds(dtype)
    beyond = [number for number in numbers if not least <= number <= most]
    return f"{beyond[0]} beside {dtype.label}" if beyond else ""


def _bounds(dtype: DType) -> tuple[int, int]:
    bits = 8 * dtype.itemsize
    return (
        (0, 2**bits - 1)
        if dtype is DType.UINT8
        else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )


def comparison(arguments: Arguments, results: Results) -> str:
    """Return "" if two operands can be compared, else why not.

    Bools are compared with integers, and integers with floats, as numbers of the latter
    dtype.
    """
    found = {each.type.dtype for each in operands_of(arguments)}
    if not found <= {*ALL}:
        return takes_none_of(found)
    if results[0].dtype is not DType.BOOL:
        return takes_none_of({results[0].dtype})
    whole = [each for each in arguments if isinstance(each, int)]
    return _unfit(whole, *found) if whole and DType.BOOL not in found else ""


def divided(arguments: Arguments, results: Results) -> str:
    """Return "" if quotients can be rounded as the last argument says, else why not."""
    return (REAL if arguments[2] is not None else FLOATING)(arguments, results)


def bounded(arguments: Arguments, results: Results) -> str:
    """Return "" if elements can be kept within two numbers, else why not.

    The bounds of integers lose their fractions.
    """
    x, *bounds = arguments
    whole = [
        int(bound)
        for bound in bounds
        if isinstance(bound, int | float) and abs(bound) < 2**63
    ]
    if results[0].dtype in INTEGERS and len(whole) != len(bounds):
        return f"bounds {bounds}"
    return alike(*FLOATS, *INDEX, DType.INT16, DType.INT8)((x, *whole), results)


def power(arguments: Arguments, results: Results) -> str:
    """Return "" if powers by one exponent can be made, else why not."""
    exponent = arguments[1]
    negative = isinstance(exponent, int) and exponent < 0
    if negative and results[0].dtype not in FLOATS:
        return "integers to a negative power"
    return REAL(arguments, results)


def derivative(arguments: Arguments, results: Results) -> str:
    """Return "" if a derivative of digamma can be computed, else why not."""
    order = arguments[0]
    known = isinstance(order, int) and order >= 0
    return FLOATING(arguments, results) if known else f"the derivative {order}"


def scaled_by_powers(arguments: Arguments, results: Results) -> str:
    """Return "" if elements can be scaled by powers of two, else why not."""
    x, exponent = (each.type.dtype for each in operands_of(arguments))
    known = x in ALL and exponent in ALL and results[0].dtype in FLOATS
    return "" if known else takes_none_of({x, exponent})


def fill_one(arguments: Arguments, results: Results) -> str:
    """Return "" if one element can fill where a bool mask is true, else why not."""
    one = operand(arguments[2]).type
    if one.dims:
        return f"a value {one}"
    x, mask, value = (each.type.dtype for each in operands_of(arguments))
    known = x in ALL and mask is DType.BOOL and value in ALL
    return (
        "" if known and (x in FLOATS or value is x) else takes_none_of({x, mask, value})
    )


def choice(arguments: Arguments, results: Results) -> str:
    """Return "" if a bool tensor selects from two, else why not."""
    condition, *others = operands_of(arguments)
    if condition.type.dtype is not DType.BOOL:
        return takes_none_of({condition.type.dtype})
    return one_dtype(others, results) and ANY(others, results)


def fill(arguments: Arguments, results: Results) -> str:
    """Return "" if a number can fill where a bool mask is true, else why not."""
    x, mask, value = arguments
    condition = operand(mask).type.dtype
    if condition is not DType.BOOL:
        return takes_none_of({condition})
    return filled((x, value), results)


def filled(arguments: Arguments, results: Results) -> str:
    """Return "" if the number can fill elements of the result's dtype, else why not."""
    x, value = arguments
    if isinstance(value, float) and results[0].dtype not in FLOATS:
        if not value.is_integer():
            return "a fraction among integers"
        return alike(*ALL)((x, int(value)), results)
    return alike(*ALL)((x,), results)


def cast(arguments: Arguments, results: Results) -> str:
    """Return "" if the kernels can convert between two dtypes, else why not."""
    found = {operand(arguments[0]).type.dtype, results[0].dtype}
    known = found <= {*ALL, DType.BFLOAT16, DType.FLOAT16}
    return "" if known else takes_none_of(found)


def one_dtype(arguments: Arguments, results: Results) -> str:
    """Return "" if all tensors have the same dtype, which can be any, else why not."""
    found = {each.type.dtype for each in operands_of(arguments)}
    found |= {each.dtype for each in results}
    return "" if len(found) == 1 else takes_none_of(found)


def triangle(arguments: Arguments, results: Results) -> str:
    """Return "" if a triangle of matrices can be copied, else why not."""
    rank = len(results[0].dims)
    return f"{rank} dims" if rank < 2 else one_dtype(arguments, results)


def made(arguments: Arguments, results: Results) -> str:
    """Return "" if a tensor of the dtype can be filled with a number, else why not."""
    dtype = results[0].dtype
    return "" if dtype in ALL else takes_none_of({dtype})


def counted(arguments: Arguments, results: Results) -> str:
    """Return "" if a range of numbers can be made, else why not."""
    dtype, fraction = results[0].dtype, any(isinstance(a, float) for a in arguments)
    known = dtype in FLOATS or (dtype in INTEGERS and not fraction)
    return _unfit(arguments, dtype) if known else takes_none_of({dtype})


def anything(arguments: Arguments, results: Results) -> str:
    """Return "": the kernel accepts all operands."""
    return ""


def along(arguments: Arguments, results: Results) -> str:
    """Return "" if the first operand has an axis, else why not."""
    return "" if operand(arguments[0]).type.dims else "a scalar"


def linear(arguments: Arguments, results: Results) -> str:
    """Return "" if rows can be multiplied by a matrix, else why not."""
    x, weight, _ = arguments
    if len(operand(weight).type.dims) != 2 or not operand(x).type.dims:
        return f"a weight {operand(weight).type}"
    return alike(*REALS, DType.BFLOAT16)(arguments, results)


def experts(arguments: Arguments, results: Results) -> str:
    """Return "" if rows can be multiplied by matrices of experts, else why not."""
    x, weight, _, bias, _ = arguments
    return alike(DType.FLOAT32, DType.BFLOAT16)((x, weight, bias), results)


def chosen(*dtypes: DType) -> Rule:
    """Return a rule for operators that select elements by their order, such as topk.

    The rule accepts a first operand of one of the given dtypes, and a first result of
    the same. Results after the first are indices.
    """

    def rule(arguments: Arguments, results: Results) -> str:
        found = {operand(arguments[0]).type.dtype, results[0].dtype}
        known = len(found) == 1 and found <= {*dtypes}
        return "" if known else takes_none_of(found)

    return rule


def told(made: DType, *dtypes: DType) -> Rule:
    """Return a rule for operators that tell something of elements, such as argmax.

    The rule accepts a first operand of one of the given dtypes, and results of `made`.
    """

    def rule(arguments: Arguments, results: Results) -> str:
        found = operand(arguments[0]).type.dtype
        if any(each.dtype is not made for each in results):
            return takes_none_of([each.dtype for each in results])
        return "" if found in dtypes else takes_none_of({found})

    return rule


def indexed(arguments: Arguments, results: Results) -> str:
    """Return "" if all index tensors are of integers, else why not."""
    indices = arguments[1]
    assert isinstance(indices, tuple)
    types = {each.type.dtype for each in operands_of(indices)}
    return "" if types <= {*INDEX} else takes_none_of(types)


def put(arguments: Arguments, results: Results) -> str:
    """Return "" if values can be written at several indices, else why not."""
    x, _, values, accumulate = arguments
    rule = alike(*ALL) if accumulate else one_dtype
    return (
        indexed(arguments, results)
        or _selected(arguments)
        or rule((x, values), results)
    )


def _selected(arguments: Arguments) -> str:
    """Return why the result of an index operation has too many dims, or ""."""
    x, indices = operand(arguments[0]).type, arguments[1]
    assert isinstance(indices, tuple)
    given = [*operands_of(indices)]
    widest = max(len(each.type.dims) for each in given)
    rank = len(x.dims) - len(given) + widest
    return f"{rank} dims are selected" if rank > MAX_RANK else ""


def written(rule: Rule) -> Rule:
    """Return a rule for operators that write values at indices along an axis.

    `rule` checks the dtypes of the tensor and the values. A tensor without axes is
    refused.
    """

    def both(arguments: Arguments, results: Results) -> str:
        x, _, _, *values = arguments
        return along(arguments, results) or rule((x, *values), results)

    return both


def attention(arguments: Arguments, results: Results) -> str:
    """Return "" if attention to a cache can run, else why not."""
    q, k, v = (operand(each).type for each in arguments[:3])
    mask = arguments[9]
    scaled = isinstance(arguments[13], Operand)
    cached = {DType.INT8} if scaled else {DType.FLOAT32, DType.FLOAT16}
    if q.dtype is not DType.FLOAT32 or k.dtype is not v.dtype or k.dtype not in cached:
        return takes_none_of({q.dtype, k.dtype, v.dtype})
    floats = [each.type.dtype for each in operands_of(arguments[10:12])]
    if isinstance(mask, Operand) and mask.type.dtype is not DType.BOOL:
        floats.append(mask.type.dtype)
    if any(dtype is not DType.FLOAT32 for dtype in floats):
        return takes_none_of(floats)
    return _grouped(q, k)


def attention_product(arguments: Arguments, results: Results) -> str:
    """Return "" if attention without a cache can run, else why not."""
    mask, floats = arguments[3], [*arguments[:3]]
    if isinstance(mask, Operand) and mask.type.dtype is not DType.BOOL:
        floats.append(mask)
    return alike(*FLOATS)(floats, results)


def attends_as_to_cache(arguments: Arguments, results: Results) -> bool:
    """Tell whether the kernel of `kvc::attention` runs attention without a cache."""
    q, k = (operand(each).type for each in arguments[:2])
    ordered = not arguments[4] or _at_most(q.dims[-2], k.dims[-2])
    fits = q.dtype is DType.FLOAT32 and len(q.dims) <= 4 and ordered
    return fits and not _grouped(results[0], k)


def _at_most(first: Dim, second: Dim) -> bool:
    if isinstance(first, int) and isinstance(second, int):
        return first <= second
    return first == second


def _grouped(q: TensorType, k: TensorType) -> str:
    """Return why too many query heads share one key head, or ""."""
    heads, groups = (kind.dims[-3] if len(kind.dims) > 2 else 1 for kind in (q, k))
    if isinstance(heads, int) and isinstance(groups, int) and groups:
        return "" if heads // groups <= MAX_SHARE else f"{heads} heads over {groups}"
    return f"{heads} heads over {groups}"


def takes_none_of(dtypes: object) -> str:
    """Return the reason that kernels take no tensors of some dtypes."""
    assert isinstance(dtypes, set | tuple | list)
    return "it takes no tensors of " + ", ".join(
        sorted({dtype.label for dtype in dtypes})
    )


ARITHMETIC: Final = computed(*NUMBERS)
REAL: Final = computed(*REALS)
ANY: Final = computed(*ALL)
WHOLE: Final = computed(*INTEGERS)
FLOATING: Final = computed(*FLOATS)
NUMERIC: Final = alike(*REALS)
LOGIC: Final = computed(*INTEGERS, DType.BOOL)
FLOAT32: Final = alike(DType.FLOAT32)


def rules(rule: Rule, names: str) -> dict[str, Rule]:
    """Return a table that gives one rule to several operators, separated by spaces."""
    return dict.fromkeys(names.split(), rule)
