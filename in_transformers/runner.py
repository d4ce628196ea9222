"""`KvcModelRunner`: run an export as its model was called.

In: a bundle, compiled or loaded, and what the exporter noted. Out: what the model
returns. A bundle with a cache runs each call in new sessions, which hold nothing
afterwards; `KvcForCausalLM` keeps them.
"""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers.exporters.metadata import ExportMetadata
from transformers.exporters.runners.base import ModelRunner

from kvc.compiler import Bundle
from kvc.runtime import BadSetting, Program, load
from kvc.runtime.data import Mode
from kvc.schema.errors import listing
from kvc.transformers.generator import Generator
from kvc.transformers.interface import FORWARD, interface_of
from kvc.transformers.models import KvcForCausalLM, KvcForConditionalGeneration


class KvcModelRunner(ModelRunner):
    """Runs a bundle on the processor, or on the device of its recipe.

    Attributes:
        program: the loaded bundle.
    """

    def __init__(self, program: Program, metadata: ExportMetadata) -> None:
        """Take a loaded bundle."""
        super().__init__(metadata)
        self.program = program
        self._generator: Generator | None = None

    @property
    def device(self) -> torch.device:
        """Return the processor, where inputs and results are."""
        return torch.device("cpu")

    @classmethod
    def from_program(
        cls,
        program: Bundle | Program,
        metadata: ExportMetadata,
        device: object = None,
        threads: int | None = None,
        mode: Mode = "map",
        backend: str | None = None,
        reference: bool | None = None,
        max_turns: int | None = None,
    ) -> "KvcModelRunner":
        """Load a bundle; one that is not saved is saved to a temporary folder.

        Args:
            program: the bundle.
            metadata: what the exporter noted.
            device: where to compute, as for `kvc.runtime.load`; None or "cpu" for what
                the recipe says.
            threads: as for `kvc.runtime.load`, as are all others.
            mode: how weights come into memory.
            backend: the backend of a bundle of several recipes.
            reference: whether to compute without a backend's library.
            max_turns: the greatest number of iterations of a loop.

        Raises:
            ExecutionError, LoadError, FormatError: as `kvc.runtime.load`.
        """
        options: dict[str, Any] = {
            "threads": threads, "mode": mode, "backend": backend,
            "reference": reference, "max_turns": max_turns,
            "device": _device_of(device),
        }  # fmt: skip
        if isinstance(program, Program):
            usual = {"mode": "map"}
            if any(options[name] != usual.get(name) for name in options):
                program = load(program.path, **options)
            return cls(program, metadata)
        folder = tempfile.mkdtemp(prefix="kvc-")
        try:
            program.save(path := Path(folder) / "model.kvc")
            loaded = load(path, **options)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(loaded, shutil.rmtree, folder, ignore_errors=True)
        return cls(loaded, metadata)

    def __call__(
        self,
        share_inputs: bool = True,
        share_outputs: bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run the forward; results are never shared with another call.

        Raises:
            BadSetting: an argument is missing.
            ExecutionError: as `Program.call`.
        """
        if FORWARD in self.program.methods:
            return self.unflatten(self._forward(kwargs))
        if self._generator is None:
            self._generator = generator_of(self.program)
        return self.unflatten([self._generator.forward(**kwargs).logits])

    def _forward(self, given: Mapping[str, object]) -> list[torch.Tensor]:
        """Run the forward of a model without a cache; return the tensors it returns.

        Raises:
            BadSetting: an argument is missing.
            ExecutionError: as `Program.call`.
        """
        constants = self.metadata.in_constants
        names = [name for name in self.metadata.kwargs if name not in constants]
        missing = [name for name in names if name not in given]
        if missing:
            expected = f"{listing(names)}, as it was exported"
            found = f"no {listing(missing)}"
            raise BadSetting(name="inputs", expected=expected, found=found)
        for name, value in constants.items():
            if given.get(name, value) != value:
                expected = f"{value!r}, as it was exported"
                raise BadSetting(name=name, expected=expected, found=given[name])
        made = self.program.call(FORWARD, {name: given[name] for name in names})
        return list(cast(Sequence[torch.Tensor], made))


def generator_of(program: Program) -> Generator:
    """Return the class that runs a bundle.

    Raises:
        UnknownName: the bundle does not generate text.
    """
    found = interface_of(program.methods.values(), program.metadata)
    kind = KvcForCausalLM if found.is_causal else KvcForConditionalGeneration
    return kind(program)


def _device_of(device: object) -> str | None:
    name = None if device is None else str(device)
    return None if name == "cpu" else name
