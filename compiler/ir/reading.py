"""Parse the IR's text, as `text.py` writes it, for tests and experiments.

In: text, and the sources of its constants. Out: the program. The text contains neither
the nesting of arguments nor source lines: inputs are plain arguments, and a method with
several outputs returns a tuple.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kvc.compiler.ir.graph import (
    Argument,
    Constant,
    Item,
    Method,
    Node,
    Program,
    State,
    Value,
)
from kvc.compiler.weights.sources import Source
from kvc.schema.dtypes import DType
from kvc.schema.graph import CursorField, CursorSlot
from kvc.schema.model import Cursor, CursorKind, StateKind
from kvc.schema.rings import Window
from kvc.schema.trees import describe_call, flatten
from kvc.schema.types import (
    Dim,
    Symbol,
    TensorType,
    add_dims,
    affine,
    floor_divide,
    multiply_dims,
)

_DTYPES = {dtype.label: dtype for dtype in DType}
_NONE = ("", "None")
_NAMED = {"None": None, "True": True, "False": False, **_DTYPES}
_TYPE = r"(\w+\[[^\]]*\])"
_TOP = {
    "symbol": re.compile(r"symbol (\S+) in (-?\d+)\.\.(-?\d+)"),
    "constant": re.compile(rf"constant (\S+): {_TYPE} \((.*)\)"),
    "state": re.compile(
        rf"state (\S+): {_TYPE} = (\S+)(?: grows along (\d+))?"
        r"(?: ([A-Z]+) along (\d+|None))?(?: at cursor (\d+))?"
        r"(?: window (.+))?"
    ),
    "cursor": re.compile(r"cursor (\S*): (\w+)(?: of (\S+) rows)? up to (\S+)"),
}
_METHOD = re.compile(r"(?:method|block (\d+)) (\S+)(?: role (\S+))?(?: adapts (\S+))?")
_BOUND = re.compile(
    rf"%(\d+) = (input|constant|state|cursor) (.+?)(?:: {_TYPE}( \(position\))?)?"
)
_NODE = re.compile(r"(?:([%\d, ]+) = )?([\w:.]+)\((.*)\)(?:: (.+))?")
_ITEM = re.compile(r"'[^']*'|\[[^\]]*\]|[^,\[\]]+")


def read_program(text: str, sources: Mapping[str, Source] | None = None) -> Program:
    """Parse the text of a program.

    Args:
        text: the text of a program, as `program_text` writes it.
        sources: the sources of the constants, by name.

    Raises:
        ValueError: a line cannot be parsed; the error names the line.
    """
    return _Reader({} if sources is None else sources).read(text)


@dataclass(slots=True)
class _Lines:
    """The parsed lines of one method so far."""

    name: str
    role: str
    block: int | None
    inputs: list[tuple[Value, str]] = field(default_factory=list)
    constants: list[tuple[Value, str]] = field(default_factory=list)
    state_in: list[tuple[Value, str]] = field(default_factory=list)
    state_out: list[tuple[Value, str]] = field(default_factory=list)
    input_out: list[tuple[Value, str]] = field(default_factory=list)
    cursor_in: list[tuple[Value, CursorSlot]] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()
    position: str = ""
    adapts: str = ""

    def method(self) -> Method:
        """Return the method of the lines; its arguments and results are not nested.

        The text of a program does not tell how the original method nested them.
        """
        names = tuple(name for _, name in self.inputs)
        tree, _, _ = describe_call(names, (object(),) * len(names), {})
        count = len(self.outputs)
        results = object() if count == 1 else (object(),) * count
        return Method(
            name=self.name,
            role=self.role,
            inputs=tuple(value for value, _ in self.inputs),
            input_names=names,
            position=self.position,
            input_tree=tree if self.block is None else "",
            output_tree=flatten(results)[1] if self.block is None else "",
            constants=tuple(self.constants),
            state_in=tuple(self.state_in),
            state_out=tuple(self.state_out),
            input_out=tuple(self.input_out),
            nodes=tuple(self.nodes),
            outputs=self.outputs,
            block=self.block,
            cursor_in=tuple(self.cursor_in),
            adapts=self.adapts,
        )


class _Reader:
    """Parses the lines of a program."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._symbols: list[Symbol] = []
        self._constants: dict[str, Constant] = {}
        self._states: dict[str, State] = {}
        self._cursors: list[Cursor] = []
        self._methods: list[_Lines] = []
        self._values: dict[int, Value] = {}

    def read(self, text: str) -> Program:
        for number, line in enumerate(text.splitlines(), 1):
            try:
                (self._inside if line.startswith("  ") else self._top)(line.strip())
            except (KeyError, ValueError, AssertionError) as error:
                raise ValueError(f"line {number}: {line!r}: {error!r}") from error
        return Program(
            symbols=tuple(self._symbols),
            constants=tuple(self._constants.values()),
            states=tuple(self._states.values()),
            methods=tuple(method.method() for method in self._methods),
            cursors=tuple(self._cursors),
        )

    def _top(self, line: str) -> None:
        """Parse a declaration, or the first line of a method."""
        word = line.partition(" ")[0]
        if word in ("method", "block"):
            block, name, role, adapts = _fields(_METHOD, line)
            number = int(block) if block else None
            self._methods.append(_Lines(name, role, number, adapts=adapts))
            self._values = {}
            return
        found = _fields(_TOP[word], line)
        if word == "symbol":
            self._symbols.append(Symbol(found[0], int(found[1]), int(found[2])))
        elif word == "constant":
            name, kind, provenance = found
            source = self._sources[name]
            self._constants[name] = Constant(name, _type(kind), source, provenance)
        elif word == "state":
            name, kind, initial, grows, written, axis, cursor, window = found
            self._states[name] = State(
                name,
                _type(kind),
                None if initial == "zeros" else initial,
                _number(grows),
                StateKind[written or "PLAIN"],
                _number(axis),
                _number(cursor),
                Window.read(window) if window else None,
            )
        else:
            name, kind, *sizes = found
            rows, most = (_dim(one) if one not in _NONE else None for one in sizes)
            self._cursors.append(Cursor(name, CursorKind[kind], None, rows, most))

    def _inside(self, line: str) -> None:
        """Parse a line inside the method whose first line was parsed last."""
        method = self._methods[-1]
        word, _, rest = line.partition(" ")
        if word == "return":
            method.outputs = tuple(self._value(one) for one in rest.split(", ") if one)
        elif word in ("state", "input"):
            name, _, value = rest.partition(" = ")
            into = method.state_out if word == "state" else method.input_out
            into.append((self._value(value), name))
        elif bound := _BOUND.fullmatch(line):
            self._bind(method, *(text or "" for text in bound.groups()))
        else:
            method.nodes.append(self._node(line))

    def _bind(
        self, method: _Lines, number: str, word: str, name: str, kind: str, filled: str
    ) -> None:
        """Parse the line of a value that is bound at the start of a method."""
        held: Mapping[str, Constant | State] = self._states
        if word == "constant":
            held = self._constants
        made = _type(kind) if kind else held[name].type
        value = self._values[int(number)] = Value(int(number), made)
        if word == "cursor":
            cursor, field = name.split()
            slot = CursorSlot(int(cursor), CursorField[field.upper()])
            method.cursor_in.append((value, slot))
        elif word == "input":
            method.inputs.append((value, name))
            method.position = name if filled else method.position
        else:
            into = method.constants if word == "constant" else method.state_in
            into.append((value, name))

    def _node(self, line: str) -> Node:
        results, op, arguments, kinds = _fields(_NODE, line)
        numbers = [int(one.strip()[1:]) for one in results.split(",") if one]
        types = re.findall(_TYPE, kinds)
        made = [Value(n, _type(t)) for n, t in zip(numbers, types, strict=True)]
        self._values |= {value.id: value for value in made}
        return Node(op, tuple(self._arguments(arguments)), tuple(made))

    def _arguments(self, text: str) -> Iterator[Argument]:
        for item in map(str.strip, _ITEM.findall(text)):
            if item.startswith("["):
                yield tuple(
                    self._item(one.strip()) for one in _ITEM.findall(item[1:-1])
                )
            elif item:
                yield self._item(item)

    def _item(self, text: str) -> Item:
        if text in _NAMED:
            return _NAMED[text]
        if text.startswith(("%", "'")):
            return self._value(text) if text[0] == "%" else text[1:-1]
        for number in _NUMBERS:
            try:
                return number(text)
            except ValueError:
                pass
        return _dim(text)

    def _value(self, text: str) -> Value:
        return self._values[int(text.removeprefix("%"))]


_NUMBERS: tuple[Callable[[str], int | float], ...] = (int, float)


def _fields(pattern: re.Pattern[str], line: str) -> list[str]:
    """Match a line with a pattern; return the groups, "" for missing groups."""
    match = pattern.fullmatch(line)
    assert match, "the line does not match"
    return [text or "" for text in match.groups()]


def _number(text: str) -> int | None:
    return None if text in _NONE else int(text)


def _type(text: str) -> TensorType:
    label, _, dims = text[:-1].partition("[")
    return TensorType(
        _DTYPES[label], tuple(map(_dim, dims.split(", "))) if dims else ()
    )


def _dim(text: str) -> Dim:
    """Parse a size, such as `2*rows*seq+((seq+1)//2)-1`."""
    return _size(ast.parse(text, mode="eval").body)


def _size(tree: ast.expr) -> Dim:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return affine(0, {name: 1})
        case ast.UnaryOp(op=ast.USub(), operand=one):
            return add_dims(0, _size(one), -1)
        case ast.BinOp(left=one, op=ast.Add() | ast.Sub() as sign, right=other):
            scale = 1 if isinstance(sign, ast.Add) else -1
            return add_dims(_size(one), _size(other), scale)
        case ast.BinOp(left=one, op=ast.FloorDiv(), right=ast.Constant(value=int(by))):
            return floor_divide(_size(one), by)
        case ast.BinOp(left=one, op=ast.Mult(), right=other):
            product = multiply_dims(_size(one), _size(other))
            assert product is not None, "powers are no sizes"
            return product
    raise AssertionError(f"{ast.unparse(tree)} is no size")
