"""Resolve `Method.carry`: arguments and results that are states of the session.

In: the methods' declarations and signatures. Out: for each method, pairs of an argument
and a result. The argument is the content of a state before a call, and the result is
the state's content after the call. `grown` makes the states.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations

from kvc.compiler.ingest.signature import TracedSignature, beneath, relative
from kvc.compiler.ir import Method as IrMethod
from kvc.compiler.request.spec import Method
from kvc.schema.dtypes import DType
from kvc.schema.errors import CaptureError, CompileError, listing
from kvc.schema.trees import member
from kvc.schema.types import symbols_in


@dataclass(frozen=True, slots=True)
class Pair:
    """A carried tensor: the argument of a call, and the result that replaces it.

    Attributes:
        path: path of the argument, which is also the name of the state.
        argument: index of the argument; None if the method only returns the state.
        result: index of the result that becomes the state.
    """

    path: str
    argument: int | None
    result: int


@dataclass(frozen=True, slots=True)
class CarriedTensors:
    """The carried tensors of one method.

    Attributes:
        pairs: the pairs of arguments and results, in the order of `Method.carry`.
        arguments: paths of the arguments that the caller no longer passes.
        results: paths of the results that the caller no longer gets.
    """

    pairs: tuple[Pair, ...]
    arguments: frozenset[str]
    results: frozenset[str]


def read_carry(
    methods: Sequence[Method], signatures: Sequence[TracedSignature]
) -> tuple[CarriedTensors, ...]:
    """Return the carried tensors of each method.

    Raises:
        CaptureError: a key or value names no tensor, two keys or values name the same
            tensor, or a key and its value are containers of different structure. The
            error lists the known paths.
    """
    known = tuple(
        path
        for method, signature in zip(methods, signatures, strict=True)
        for path in signature.arguments
        if any(beneath(path, key) for key in method.carry)
    )
    return tuple(
        _Reader(method, signature, known).read()
        for method, signature in zip(methods, signatures, strict=True)
    )


class _Reader:
    """Reads the `carry` of one method; `known` are the paths of all methods' states."""

    def __init__(
        self, method: Method, signature: TracedSignature, known: Sequence[str]
    ) -> None:
        self._method = method
        self._known = known
        self._arguments = {path: i for i, path in enumerate(signature.arguments)}
        self._results = {path: i for i, path in enumerate(signature.results)}

    def read(self) -> CarriedTensors:
        pairs: list[Pair] = []
        gone: set[str] = set()
        for key, value in self._method.carry.items():
            root = self._result_root(key, value)
            gone.update({root, *(p for p in self._results if beneath(p, root))})
            pairs += self._pairs(key, root)
        self._check_once("argument", [pair.path for pair in pairs])
        names = list(self._results)
        self._check_once("result", [names[pair.result] for pair in pairs])
        taken = {p for p in self._arguments if p in {pair.path for pair in pairs}}
        taken.update(key for key in self._method.carry)
        return CarriedTensors(tuple(pairs), frozenset(taken), frozenset(gone))

    def _result_root(self, key: str, value: str | int) -> str:
        """Return the path of the result that an entry of `carry` names.

        An entry is `key`, the path of an argument, with `value`, the path or the index
        of a result.
        """
        if isinstance(value, int) and not isinstance(value, bool):
            if 0 <= value < len(self._results):
                return list(self._results)[value]
        elif isinstance(value, str):
            for root in (value, member("", value)):
                if any(beneath(path, root) for path in self._results):
                    return root
        known = [f"{p or 'the result'} (or {i})" for p, i in self._results.items()]
        raise self._refused(
            f"carry gives {key!r} the result {value!r}; the tensors that it returns "
            f"are {listing(known)}"
        )

    def _pairs(self, key: str, root: str) -> Iterator[Pair]:
        """Yield each tensor of an argument, with the result that replaces it.

        `key` is the path of the argument, and `root` is the path of the results.
        """
        own = [path for path in self._arguments if beneath(path, key)]
        paths = own or [
            path for path in dict.fromkeys(self._known) if beneath(path, key)
        ]
        if not paths:
            raise self._refused(
                f"carry names the argument {key!r}; its tensors are "
                f"{listing(list(self._arguments))}, and methods carry "
                f"{listing(list(dict.fromkeys(self._known)))}"
            )
        numbers = {
            relative(path, root): number
            for path, number in self._results.items()
            if beneath(path, root)
        }
        places = [relative(path, key) for path in paths]
        if set(places) != numbers.keys():
            raise self._refused(
                f"carry replaces {key!r} by {root or 'the result'!r}, but the result "
                f"holds {_listed(numbers)} and the argument {_listed(places)}"
            )
        for path, place in zip(paths, places, strict=True):
            yield Pair(path, self._arguments.get(path), numbers[place])

    def _check_once(self, what: str, paths: Sequence[str]) -> None:
        for path in paths:
            if paths.count(path) > 1:
                raise self._refused(f"carry names the {what} {path!r} twice")

    def _refused(self, reason: str) -> CaptureError:
        return CaptureError(method=self._method.name, place="", reason=reason)


def _listed(places: Sequence[str] | Mapping[str, int]) -> str:
    return listing([place or "one tensor" for place in places])


# Check `Method.position`, the input that a session fills with its position.


def check_positions(methods: Sequence[IrMethod], state_symbols: Set[str]) -> None:
    """Check the position input that each method declares.

    Args:
        methods: the imported methods.
        state_symbols: names of the sizes that are fixed when a session is created.

    Raises:
        CompileError: methods that write the same states have different names for the
            position.
        CaptureError: a session cannot fill the input that a method declares.
    """
    users = [method for method in methods if method.position]
    for one, other in combinations(users, 2):
        if one.position != other.position and _write_alike(one, other):
            raise CompileError(
                message=f"method {one.name} calls its position {one.position!r}, "
                f"method {other.name} {other.position!r}, and both write the same "
                "states, which have one position, so give both inputs one name"
            )
    for method in users:
        fault = _fault(method, state_symbols)
        if fault:
            reason = f"position names the input {method.position!r}, but {fault}"
            raise CaptureError(method=method.name, place="", reason=reason)


def _write_alike(method: IrMethod, other: IrMethod) -> bool:
    """Tell whether two methods write a common state, or both write no state."""
    one, two = ({name for _, name in m.state_out} for m in (method, other))
    return not one or not two or not one.isdisjoint(two)


def _fault(method: IrMethod, state_symbols: Set[str]) -> str:
    """Return why a session cannot fill a method's position input, "" if it can."""
    types = {n: v.type for n, v in zip(method.input_names, method.inputs, strict=True)}
    name = method.position
    if name not in types:
        carried = [state for _, state in (*method.state_in, *method.state_out)]
        if name in carried:
            return "it is carried, so it is not an input"
        return f"its tensors are {listing(list(types))}"
    kind = types.pop(name)
    if kind.dtype is not DType.INT64 or len(kind.dims) > 1:
        return f"it is {kind}; a position is int64, with no dims, [1], [batch] or [seq]"
    if name in [changed for _, changed in method.input_out]:
        return "the method writes into it, but the session discards such writes"
    known = {*state_symbols, *symbols_in(types.values())}
    loose = [symbol for symbol in symbols_in([kind]) if symbol not in known]
    if loose:
        return f"no other input has the size {loose[0]}; use the Dim of the tokens"
    return ""
