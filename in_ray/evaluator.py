"""`Evaluator`: an actor that scores windows of a text by the bundle of each job.

In: jobs, a window each. Out: scores. It has the bundle of the last job open; the jobs
of a bundle come one after the other.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.runtime import Program, load
from kvc.schema.errors import BadSetting, NodeDiffers
from kvc.schema.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvc.runtime.scoring import WindowScore, WindowTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """How bundles are measured; names are those of `BundleConfig` and `kvc.load`.

    Attributes:
        window: the length of a window in tokens; None for the default of `kvc eval`.
        stride: by how many tokens the window moves; None for half a window.
        against: the bundle that others are compared with, None for none.
        concurrency: how many actors there are.
        num_cpus: the processors of an actor, and its threads.
        mode: how weights come into memory. Mapped weights are in the memory of a node
            once, for all of its actors.
        data_folders: further folders of data files.
        reference: whether backends compute by their reference implementation.
        device: the device to run on.
        backend: of a bundle for several recipes, the backend of the one to run.
        adapter: the file of the adapter of all bundles, and what multiplies what it
            adds; None for none.
        ray_remote_args: further arguments of the actors, such as `resources`.
    """

    window: int | None = None
    stride: int | None = None
    against: str | None = None
    concurrency: int = 1
    num_cpus: int = 1
    mode: str = "map"
    data_folders: "Sequence[str]" = ()
    reference: bool | None = None
    device: str | None = None
    backend: str | None = None
    adapter: tuple[str, float] | None = None
    ray_remote_args: "Mapping[str, object]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check numbers.

        Raises:
            BadSetting: one is not a whole number from 1.
        """
        for name in ("concurrency", "num_cpus"):
            count = getattr(self, name)
            if type(count) is not int or count < 1:
                expected = "a whole number of 1 or more"
                raise BadSetting(name=name, expected=expected, found=count)

    def opened(self, bundle: str) -> Program:
        """Load a bundle; its sessions have the adapter.

        Raises:
            KvcError: as `load` and `Adapters.load`.
        """
        from kvc.runtime.data.modes import check_mode

        program = load(
            bundle,
            check_mode(self.mode),
            [whole_path(folder) for folder in self.data_folders],
            self.reference,
            self.num_cpus,
            device=self.device,
            backend=self.backend,
        )
        if self.adapter is not None:
            file, scale = self.adapter
            try:
                program.adapters.use(program.adapters.load(file).name, scale)
            except BaseException:
                program.close()
                raise
        return program


def whole_path(path: str) -> str:
    """Return a path that is the same in the folders of actors."""
    return str(Path(path).absolute())


@frozen
class Bundle:
    """A bundle that all nodes have.

    Attributes:
        path: where it is.
        digest: its digest.
    """

    path: str
    digest: str


@frozen
class WindowJob:
    """A window that a bundle is to score.

    Attributes:
        bundles: the bundle, and the one that it is compared with, if there is one.
        window: the window.
    """

    bundles: tuple[Bundle, ...]
    window: "WindowTokens"


class Evaluator:
    """Scores windows; Ray makes an actor of it."""

    def __init__(self, config: EvaluationConfig) -> None:
        """Remember the settings, with whole paths."""
        self._config = config
        self._opened = ExitStack()
        self._bundles: tuple[Bundle, ...] = ()

    def ready(self) -> None:
        """Tell that the actor has started."""

    def do(self, job: WindowJob) -> "WindowScore":
        """Return the score of a window.

        Raises:
            NodeDiffers: the bundle of this node is another one.
            KvcError: as `load` and `WindowScorer.score`.
        """
        if job.bundles != self._bundles:
            self._open(job.bundles)
        return self._scorer.score(job.window)

    def _open(self, bundles: tuple[Bundle, ...]) -> None:
        """Open bundles in place of those that are open."""
        from kvc.runtime.scoring import WindowScorer

        self._bundles = ()
        self._opened.close()
        programs = list[Program]()
        for bundle in bundles:
            program = self._opened.enter_context(self._config.opened(bundle.path))
            _check_same(bundle, program)
            programs.append(program)
        self._scorer: WindowScorer = self._opened.enter_context(WindowScorer(*programs))
        self._bundles = bundles


def _check_same(bundle: Bundle, program: Program) -> None:
    """Check that a node has the bundle that the driver has.

    Raises:
        NodeDiffers: it has another one.
    """
    if program.digest != bundle.digest:
        import ray

        context: Any = ray.get_runtime_context()
        raise NodeDiffers(
            path=bundle.path,
            node=context.get_node_id()[:12],
            expected=bundle.digest[:16],
            found=program.digest[:16],
        )
