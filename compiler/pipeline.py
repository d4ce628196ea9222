"""`compile_program`: every stage from a module to a bundle.

nn.Module --capture--> Program --passes--> Program --lower (all methods at once)-->
Program --plan, emit--> schema.Program --save--> model.kvc
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version

import torch
from torch import nn

from kvc.compiler.adapters.slots import adaptable, check_used
from kvc.compiler.analysis.declare import declare
from kvc.compiler.backends import Backend, find_backend
from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.emit.bundle import Bundle
from kvc.compiler.emit.files import (
    Files,
    check_declared,
    check_generation_config,
    take_files,
)
from kvc.compiler.emit.program import emit_program
from kvc.compiler.ingest import import_program
from kvc.compiler.ir import Method as IrMethod
from kvc.compiler.ir import Program
from kvc.compiler.ir.control import blocks_by_number, blocks_of, entries
from kvc.compiler.ir.text import program_text
from kvc.compiler.lower.buckets import with_buckets
from kvc.compiler.lower.calibration import (
    Calibrating,
    Calibrator,
    LinearLayers,
    check_calibration,
    plain_calls,
    with_calibration,
)
from kvc.compiler.lower.copy_budget import (
    check_budgets,
    check_copy_budget,
    warn_of_plain_caches,
)
from kvc.compiler.lower.fitting import check_fit, chosen, gains
from kvc.compiler.lower.left_to_pytorch import backends_of, warn_of_left
from kvc.compiler.lower.lowering import lower
from kvc.compiler.lower.pass_lists import Narrowing, observing_passes, passes_for
from kvc.compiler.lower.variants import Emitted, together
from kvc.compiler.passes import run_passes
from kvc.compiler.passes.base import check
from kvc.compiler.passes.quantize_weights import NARROW
from kvc.compiler.passes.redundancies import DropDeadCode
from kvc.compiler.place import Verdict
from kvc.compiler.request.adapter_slots import AdapterSlots
from kvc.compiler.request.feedback import reporting
from kvc.compiler.request.hints import (
    check_max_length,
    limited,
    with_front_end,
)
from kvc.compiler.request.requests import check_mapping, check_request
from kvc.compiler.request.spec import Method, StateSpec
from kvc.compiler.trace import CapturedMethod, Unchanged, capture
from kvc.compiler.weights.int4 import Moments
from kvc.recipes import DEFAULT, Recipe, Wanted, load_recipes
from kvc.schema.container import Content, Progress
from kvc.schema.errors import CaptureError, CompileError, FitTooSmall
from kvc.schema.interrupts import keeping_interrupts
from kvc.schema.provenance import Calibration, Provenance
from kvc.schema.roles import LOGITS, TOKENS, has_signature

# Check that methods have the signatures of their roles.


def check_roles(program: Program) -> None:
    """Check that every method with a role has the role's signature.

    Raises:
        CompileError: a method has a different signature; the error has the expected
            signature and the one found.
    """
    for method in program.methods:
        taken, given = ([v.type for v in vs] for vs in (method.inputs, method.outputs))
        if not has_signature(method.role, taken, given, method.output_tree):
            raise CompileError(message=_mismatch(method))


def _mismatch(method: IrMethod) -> str:
    inputs = zip(method.input_names, method.inputs, strict=True)
    taken = ", ".join(f"{name}: {value.type}" for name, value in inputs)
    return (
        f"method {method.name} has the role {method.role}, which expects "
        f"{TOKENS[method.role]} as the first input and one tensor of logits "
        f"{LOGITS[method.role]} as the result; found ({taken}) -> {_results(method)}. "
        "Change the method, or leave the role out"
    )


def _results(method: IrMethod) -> str:
    types = ", ".join(str(value.type) for value in method.outputs) or "nothing"
    return types if method.output_tree == "0" else f"({types}) in a container"


# Compile a module.


@keeping_interrupts
def compile_program(
    model: nn.Module,
    methods: Sequence[Method] = (),
    recipe: Wanted = DEFAULT,
    metadata: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    states: Sequence[StateSpec] = (),
    max_copy_bytes: Mapping[str, int] | None = None,
    files: Files | None = None,
    max_length: int | None = None,
    calibrate: Calibrator | None = None,
    fit: int | None = None,
    adapters: AdapterSlots | None = None,
) -> Bundle:
    """Compile methods of a model that share its weights and its states.

    Args:
        model: the module. Its weights are read when the bundle is saved; weights made
            by `empty_parameters` are read from the checkpoint that was loaded into
            them.
        methods: the methods to compile; at least one.
        recipe: a recipe, its name, or the path of a recipe file. Several recipes, in a
            sequence or with commas between names, make one bundle for several backends,
            of which `load` selects the first that can run.
        metadata: settings to keep in the bundle, with values that JSON can represent.
        progress: called for each stage and method; see `kvc.schema.container.Progress`.
        states: buffers whose sizes a session chooses.
        max_copy_bytes: method -> the most bytes that writing its states may copy in a
            call, not counting the bytes written.
        files: files to store in the bundle, such as a tokenizer, by plain name: the
            bytes, or the path of a file that is read when the bundle is saved.
        max_length: the greatest number of tokens in a session. Ring caches set no such
            limit. A cache of a fixed size sets one, and the lower of the two limits
            applies.
        calibrate: samples, such as `kvc.runtime.calibration.Samples("text.txt")`, for a
            recipe whose backend stores values as integers, or whose weights are int4.
        fit: the greatest number of bytes of the bundle, for an int4 recipe. As many
            weights as fit become int8, those with the largest rounding error first.

        adapters: how many adapters the bundle can hold at a time, for recipes of kvc's
            own kernels; None: none.

    Warns:
        LeftToPyTorch: backends leave operators to PyTorch, so the bundle needs PyTorch.

    Raises:
        CompileError: the request is not a module with methods, a method does not have
            the signature of its role, or `max_length` cannot limit this program.
        BadModelSetting: the model has no such layers for `adapters`, or a recipe runs
            on a backend that has no adapters.
        CaptureError: a method cannot be traced.
        UnsupportedOps: some operators have no kernel; the error lists all of them.
        StateConflict: two names share memory that a method writes, or two methods
            disagree about a state.
        CopyBudgetExceeded: writing the states of a method copies more bytes than
            `max_copy_bytes` allows.
        ParametersEmpty: parameters have no memory, and no checkpoint filled them.
        RecipeError: the recipe or its backend is unknown or wrong.
        RecipesApart: the programs that several recipes make of the model differ for a
            caller, or the backend of one of the recipes runs no node.
        BadBuckets: the recipe's buckets do not fit the sizes of the model.
        CalibrationNeeded: a backend needs samples and none are given.
        CalibrationUnused: samples are given and no backend needs them.
        FitUnused: `fit` is given to a recipe without int4, or to several recipes.
        FitTooSmall: the bundle is larger than `fit` even with every possible weight as
            int4.
        BadSamples, NotCalibrated, SamplesNotFinite, RangeUnbounded: the samples are not
            for this model, do not run all of the model, or show that its values cannot
            be stored as integers.
        BadFile: a file has a name that is not plain, or cannot be read.
        TokenizerTooLarge: metadata name a tokenizer that does not fit the model.
        BadBackend: a backend took a node that it cannot take, or did not return one
            valid `Lowered` for each partition.
        CacheDtypeRefused: the recipe stores caches as int8 or float16, and one of the
            caches cannot be stored in that dtype.
    """
    recipes = load_recipes(recipe)
    check_request(model, methods, states)
    check_mapping("metadata", metadata)
    check_mapping("max_copy_bytes", max_copy_bytes)
    check_budgets([method.name for method in methods], max_copy_bytes or {})
    check_mapping("files", files)
    check_generation_config((metadata or {}).get("generation_config"))
    check_max_length(max_length)
    taken = take_files(files or {})
    backends = [_backends_of(one) for one in recipes]
    check_calibration(recipes, backends, calibrate)
    check_fit(recipes, fit)
    report = reporting(progress)
    # `Unchanged` is the outer context, so that it restores the model last.
    slots = adaptable(model, methods, states, adapters, recipes)
    with Unchanged(model, methods), stand_ins(model), slots as given:
        every, held = (*methods, *given.methods), (*states, *given.states)
        captured = _capture_all(model, every, held, report)
        report("optimise", 0, 1)
        imported = import_program(model, captured, given.slots)
        check_used(given, imported.constants)
    check_roles(imported)
    samples = None if calibrate is None else Calibrating(calibrate, taken, report)
    making = _Making(
        imported, metadata or {}, max_copy_bytes or {}, samples, recipes[0], report
    )
    make = making.by if fit is None else partial(_made_to_fit, making, fit, taken)
    made = _made_by_all(recipes, make)
    emitted = together(made)
    program = limited(with_calibration(emitted.program, made), max_length)
    check_declared(program, metadata or {}, files or {})
    return Bundle(program, emitted.sources, taken)


def _made_by_all(
    recipes: Sequence[Recipe], make: Callable[[Recipe], Emitted]
) -> list[Emitted]:
    """Return the program that each recipe makes; warn of operators left to PyTorch."""
    made = [make(one) for one in recipes]
    offered = {name for one in recipes for name in backends_of(one)}
    for one, each in zip(recipes, made, strict=True):
        warn_of_left(each.program, one, offered)
    return made


@dataclass(frozen=True)
class _Making:
    """The request of a compilation, to which recipes are applied one by one.

    Attributes:
        imported: the model's methods.
        metadata, max_copy_bytes: the arguments of `compile_program`.
        samples: the samples to calibrate with, None without samples.
        first: the first recipe, which determines how the model is run on samples.
        report: called for each stage.
    """

    imported: Program
    metadata: Mapping[str, object]
    max_copy_bytes: Mapping[str, int]
    samples: Calibrating | None
    first: Recipe
    report: Progress

    def by(self, recipe: Recipe, wide: frozenset[str] = frozenset()) -> Emitted:
        """Compile the program by a recipe.

        `wide` contains the names of the weights that become int8 instead of int4.
        """
        backends, samples = _backends_of(recipe), self.samples
        narrowing, used = Narrowing(wide), None
        if samples is not None and recipe.linear in NARROW:
            moments, used = self.moments
            narrowing = Narrowing(wide, moments)
        program = with_buckets(self.imported, recipe)
        program, _ = run_passes(passes_for(recipe, backends, narrowing), program)
        program = DropDeadCode().run(declare(program))
        check(program, "declaring states")
        warn_of_plain_caches(program)
        self.report("lower", 0, 1)
        lowered = lower(program, backends)
        program, verdicts = lowered.program, lowered.verdicts
        sources = {c.name: c.source for c in program.constants}
        provenance = replace(_provenance(self.imported, recipe), calibration=used)
        emit = partial(
            emit_program, program, verdicts, metadata=_as_json(self.metadata)
        )
        parts = lowered.partitions(recipe)
        if samples is not None and any(each.calibrated for each in backends):
            plain = emit(plain_calls(parts), provenance)
            parts, used = samples.ranges(plain, sources, parts)
            provenance = replace(provenance, calibration=used)
        calls = lowered.delegates(parts)
        check_copy_budget(_by_entry(program, verdicts), self.max_copy_bytes)
        self.report("plan", 0, 1)
        return Emitted(emit(calls, provenance), sources)

    @cached_property
    def moments(self) -> tuple[Mapping[str, Moments], Calibration]:
        """Return second moments of linear layers' inputs, and the calibration used.

        The moments are by the name of the layer's weight.
        """
        assert self.samples is not None
        program, _ = run_passes(observing_passes(self.first), self.imported)
        program = DropDeadCode().run(declare(program))
        others = _backends_of(self.first)
        free = (one for one in others if not one.calibrated and not one.fixed_shapes)
        lowered = lower(program, [LinearLayers({}), *free])
        plain = emit_program(
            lowered.program,
            lowered.verdicts,
            lowered.delegates(lowered.partitions()),
            _provenance(self.imported, None),
            _as_json(self.metadata),
        )
        sources = {c.name: c.source for c in lowered.program.constants}
        return self.samples.moments(plain, sources)


def _made_to_fit(
    making: _Making, fit: int, files: Mapping[str, Content], recipe: Recipe
) -> Emitted:
    """Compile by an int4 recipe, with as many int8 weights as fit.

    Raises:
        FitTooSmall: the bundle is too large even if all weights are int4.
    """
    made = making.by(recipe)
    needed = Bundle(made.program, made.sources, files).nbytes
    if needed > fit:
        raise FitTooSmall(recipe=recipe.name, nbytes=needed, allowed=fit)
    making.report("choose bits", 0, 0)
    ordered, room = gains(made.program, made.sources), fit - needed
    while wide := chosen(ordered, made.program, room):
        wider = making.by(recipe, wide)
        over = Bundle(wider.program, wider.sources, files).nbytes - fit
        if over <= 0:
            return wider
        room -= over  # the order of blobs and the gaps between them change
    return made


def _capture_all(
    model: nn.Module,
    methods: Sequence[Method],
    states: tuple[StateSpec, ...],
    report: Progress,
) -> tuple[CapturedMethod, ...]:
    captured = []
    for done, method in enumerate(methods):
        report("capture", done, len(methods), method.name)
        try:
            captured.append(capture(model, method, states))
        except CaptureError as error:
            advised = with_front_end(model, error)
            if advised is None:
                raise
            raise advised from error
    return tuple(captured)


def _backends_of(recipe: Recipe) -> tuple[Backend, ...]:
    """Return the backends of a recipe, in the order in which they take nodes."""
    if not recipe.backend:
        return ()
    first = find_backend(recipe.backend)(recipe.backend_options)
    return (first, find_backend(recipe.rest)({})) if recipe.rest else (first,)


def _by_entry(
    program: Program, verdicts: Mapping[str, tuple[Verdict, ...]]
) -> dict[str, tuple[Verdict, ...]]:
    """Return method -> the verdicts of the method and of the blocks that it runs."""
    blocks = blocks_by_number(program)
    return {
        method.name: tuple(
            verdict
            for one in (method, *blocks_of(method, blocks))
            for verdict in verdicts[one.name]
        )
        for method in entries(program)
    }


def _as_json(metadata: Mapping[str, object]) -> dict[str, str]:
    for key in metadata:
        if not isinstance(key, str):
            raise CompileError(message=f"metadata: the key {key!r} is not text")
    try:
        return {k: json.dumps(v, sort_keys=True) for k, v in metadata.items()}
    except (TypeError, ValueError) as error:
        raise CompileError(message=f"metadata must be JSON: {error}") from error


def _provenance(program: Program, recipe: Recipe | None) -> Provenance:
    text = program_text(program)
    return Provenance(
        kvc_version=version("kvc"),
        torch_version=torch.__version__,
        recipe="" if recipe is None else recipe.name,
        recipe_text="" if recipe is None else recipe.text,
        source_digest=hashlib.sha256(text.encode()).hexdigest(),
    )
