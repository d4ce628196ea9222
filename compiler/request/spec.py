"""The user's declarations: dimensions, methods, states, a whole model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from kvc.compiler.request.adapter_slots import AdapterSlots
from kvc.schema.errors import CompileError
from kvc.schema.verify.limits import MAX_DIM


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension whose size is chosen at each call, within inclusive bounds.

    Within a method, one name stands for one size: inputs whose Dims have the same name
    must agree. A Dim of a state is chosen once, when a session is opened.

    Attributes:
        name: an identifier; messages and dumps show it.
        lower, upper: the bounds, 0 <= lower <= upper < 2**31.
    """

    name: str
    lower: int
    upper: int

    def __post_init__(self) -> None:
        """Check the bounds and the name.

        Raises:
            CompileError: a bound is no int, 0 <= lower <= upper < 2**31 does not hold,
                or the name is no identifier.
        """
        name: object = self.name
        if not isinstance(name, str) or not name.isidentifier():
            raise CompileError(message=f"Dim name {name!r} is not an identifier")
        for bound in (self.lower, self.upper):
            if type(bound) is not int:
                raise CompileError(
                    message=f"Dim {name}: the bound {bound!r} is not an int"
                )
        if not 0 <= self.lower <= self.upper <= MAX_DIM:
            expected = f"expected 0 <= lower <= upper <= {MAX_DIM}"
            found = f"found lower {self.lower} and upper {self.upper}"
            raise CompileError(message=f"Dim {self.name}: {expected}, {found}")


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the model to compile.

    Attributes:
        name: name of the model's attribute that is the method.
        args: example positional arguments: tensors, constants, nested containers.
        kwargs: example keyword arguments.
        dynamic: input -> axis -> Dim, for dynamic axes; an input is a parameter name,
            or a path into a container such as "past[0]" or "cache.key".
        role: the method's role in a generation loop: "prefill", "decode",
            "prefill_all", "encode" or "". Each call of an "encode" method starts the
            session anew, and methods that read cursors can only run after such a call.
        carry: arguments that the session keeps from call to call. The key is the
            argument's name, or a path into the argument; a whole container is allowed.
            The value names the result that replaces the argument in the next call: a
            key of a returned dict, a path such as "present[0]" or "[1]" for a returned
            tuple, or the index of a returned tensor. Callers neither pass the argument
            nor get the result. Methods that carry the same path share one state; a
            method without the argument may create it.
        position: the int64 input that the session fills with its position, or with the
            positions of the new tokens; "" if there is none.
        adapts: name of an earlier method, of which this is the body that sessions with
            adapters run; "" for a method that callers call.
    """

    name: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    dynamic: Mapping[str, Mapping[int, Dim]] = field(default_factory=dict)
    role: str = ""
    carry: Mapping[str, str | int] = field(default_factory=dict)
    position: str = ""
    adapts: str = ""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Buffers whose size or content is chosen when a session is opened.

    Attributes:
        name: the buffer's name, or a pattern such as "layers.*.k" (`fnmatch`).
        axis: the axis of `capacity`; a negative number counts from the end.
        capacity: the possible sizes along `axis`.
        batch: the possible sizes along axis 0, if a session chooses them too.
        given: whether a session sets the content, and methods only read it.
    """

    name: str
    axis: int | None = None
    capacity: Dim | None = None
    batch: Dim | None = None
    given: bool = False

    def __post_init__(self) -> None:
        """Check that the spec is consistent.

        Raises:
            CompileError: only one of `axis` and `capacity` is given, nothing but the
                name is given, axis 0 has both a `capacity` and a `batch`, or one of
                these two is no Dim.
        """
        name: object = self.name
        axis: object = self.axis
        dims = (self.capacity, self.batch)
        if not isinstance(name, str):
            reason = "its name is not text"
        elif axis is not None and type(axis) is not int:
            reason = f"the axis {axis!r} is not an int"
        elif not all(isinstance(dim, Dim | None) for dim in dims):
            reason = "capacity and batch are Dims, such as Dim('capacity', 16, 4096)"
        elif (self.axis is None) != (self.capacity is None):
            reason = "axis and capacity go together"
        elif self.capacity is None and self.batch is None and not self.given:
            reason = "give axis and capacity, or batch, or all of them"
        elif self.axis == 0 and self.batch is not None:
            reason = "axis 0 cannot be both capacity and batch"
        else:
            return
        raise CompileError(message=f"StateSpec {self.name!r}: {reason}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to compile: the result of a MODEL factory of the command line.

    Attributes:
        model: the module; in evaluation mode.
        methods: the methods to compile.
        states: buffers whose size or content is chosen when a session is opened.
        adapters: how many adapters the bundle can hold at a time; None: none.
        metadata: settings to keep in the bundle, with values that JSON can represent.
        files: files to store in the bundle, such as a tokenizer, by plain name: the
            bytes, or the path of a file that is read when the bundle is saved.
    """

    model: nn.Module
    methods: tuple[Method, ...]
    states: tuple[StateSpec, ...] = ()
    adapters: AdapterSlots | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, bytes | Path] = field(default_factory=dict)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return name -> tensor for all names of all parameters and buffers.

    The order is that of the model.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    return named | dict(model.named_buffers(remove_duplicate=False))
