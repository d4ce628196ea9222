"""What a user declares: dimensions, methods, states, a model as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension whose size is chosen at each call, within inclusive bounds.

    One name is one size within a method: inputs that share it must agree.
    """

    name: str
    lower: int
    upper: int

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: unless 0 < lower <= upper and the name is an identifier.
        """
        if not self.name.isidentifier():
            raise ValueError(f"Dim name {self.name!r} is not an identifier")
        if not 0 < self.lower <= self.upper:
            raise ValueError(
                f"Dim {self.name}: 0 < {self.lower} <= {self.upper} is wrong"
            )


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the model to compile.

    Attributes:
        name: attribute of the model; any name.
        args: example positional arguments: tensors, constants, nested containers.
        kwargs: example keyword arguments.
        dynamic: for each dynamic input its dynamic axes; the key is the parameter's
            name, or a path such as "past[0]" into a container.
        role: what it is to a generation loop: "prefill", "decode" or "".
    """

    name: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    dynamic: Mapping[str, Mapping[int, Dim]] = field(default_factory=dict)
    role: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a MODEL factory of the command line returns.

    Attributes:
        model: the module; in evaluation mode.
        methods: what to compile of it.
        metadata: settings to keep in the bundle; values that JSON can hold.
    """

    model: nn.Module
    methods: tuple[Method, ...]
    metadata: Mapping[str, object] = field(default_factory=dict)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer by each of its names, in the model's order."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return named | dict(model.named_buffers(remove_duplicate=False))
