"""`BundleConfig`: which bundle answers, on how many actors, with what limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvc.runtime import Program, load
from kvc.runtime.generation import Arguments
from kvc.schema.errors import BadSetting
from kvc.serving.batch import AdapterChoice, Prompts
from kvc.serving.scheduling import Limits

_MOST = 1 << 20  # of numbers of actors, batches and threads


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleConfig:
    """The settings of a processor; names are those of `ray.data.llm`, where it has one.

    Attributes:
        model_source: the path of the bundle, the same on all nodes.
        concurrency: how many actors there are; a pair: the least and the most.
        batch_size: how many rows an actor is given at a time.
        max_concurrent_batches: how many batches an actor has at a time, so that it need
            not wait for the last rows of one.
        num_cpus: the processors of an actor, and its threads.
        sampling_params: settings of rows that say nothing else.
        limits: the limits of the scheduler of each actor.
        adapters: the files of adapters that rows can name, by name.
        default_adapter: the file of the adapter of rows that name none, and what
            multiplies what it adds; None for none.
        mode: how weights come into memory, as `kvc.load` takes it. Mapped weights are
            in the memory of a node once, for all of its actors.
        should_continue_on_error: whether a row that fails has an `error`; if not, it
            ends the whole run.
        ray_remote_args: further arguments of the actors, such as `resources`.
    """

    model_source: str
    concurrency: int | tuple[int, int] = 1
    batch_size: int = 64
    max_concurrent_batches: int = 4
    num_cpus: int = 1
    sampling_params: Arguments = field(default_factory=Arguments)
    limits: Limits = field(default_factory=Limits)
    adapters: Mapping[str, str] = field(default_factory=dict)
    default_adapter: tuple[str, float] | None = None
    mode: str = "map"
    should_continue_on_error: bool = True
    ray_remote_args: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check numbers.

        Raises:
            BadSetting: one is not a whole number from 1, or a pair goes down.
        """
        least, most = self.actors
        counts = {
            "concurrency": least,
            "batch_size": self.batch_size,
            "max_concurrent_batches": self.max_concurrent_batches,
            "num_cpus": self.num_cpus,
        }
        for name, count in counts.items():
            if type(count) is not int or not 1 <= count <= _MOST:
                expected = "a whole number of 1 or more"
                raise BadSetting(name=name, expected=expected, found=count)
        if least > most:
            expected = "the least number of actors, then the most"
            found = self.concurrency
            raise BadSetting(name="concurrency", expected=expected, found=found)

    @property
    def actors(self) -> tuple[int, int]:
        """Return the least and the greatest number of actors."""
        if isinstance(self.concurrency, tuple):
            return self.concurrency
        return self.concurrency, self.concurrency

    def on_nodes(self) -> "BundleConfig":
        """Return the same settings with whole paths: actors run in other folders."""
        default = self.default_adapter
        return replace(
            self,
            model_source=_whole(self.model_source),
            adapters={name: _whole(file) for name, file in self.adapters.items()},
            default_adapter=default and (_whole(default[0]), default[1]),
        )

    def opened(self) -> tuple[Program, Prompts]:
        """Load the bundle and its adapters, in the process of an actor.

        Raises:
            KvcError: as `load`, `Adapters.load` and `Prompts`.
        """
        from kvc.runtime.data.modes import check_mode

        mode = check_mode(self.mode)
        program = load(self.model_source, mode, threads=self.num_cpus)
        try:
            for name, file in self.adapters.items():
                program.adapters.load(file, name)
            adapter = AdapterChoice()
            if self.default_adapter is not None:
                file, scale = self.default_adapter
                adapter = AdapterChoice(program.adapters.load(file).name, scale)
            prompts = Prompts(program, self.sampling_params, adapter)
        except BaseException:
            program.close()
            raise
        return program, prompts


def _whole(path: str) -> str:
    return str(Path(path).absolute())
