"""`compile_program`: the whole way from a module to a bundle.

nn.Module --capture--> Program --passes--> Program --lower (all methods at once)-->
Program --plan, emit--> schema.Program --save--> model.kvc
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import torch
from torch import nn

from kvc.compiler.analysis.declare import declare
from kvc.compiler.analysis.growable import find_growable
from kvc.compiler.backends import Backend, Partition, find_backend
from kvc.compiler.backends.answers import lowered_partitions, supported_nodes
from kvc.compiler.backends.moves import with_moves
from kvc.compiler.backends.outline import outline
from kvc.compiler.buckets import check_fixed, values_of, with_buckets
from kvc.compiler.bundle import Bundle
from kvc.compiler.calibration import (
    Calibrating,
    Calibrator,
    Parts,
    check_calibration,
    plain_calls,
    with_calibration,
)
from kvc.compiler.capture import CapturedMethod, Unchanged, capture
from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.copy_budget import check_budgets, check_copy_budget
from kvc.compiler.emit.program import DelegateCall, emit_program
from kvc.compiler.files import (
    Files,
    check_declared,
    check_generation_config,
    take_files,
)
from kvc.compiler.front_ends import with_front_end
from kvc.compiler.import_fx import import_program
from kvc.compiler.in_place import Verdict, in_write_order, prove_all
from kvc.compiler.ir import Method as IrMethod
from kvc.compiler.ir import Node, Program
from kvc.compiler.ir.control import blocks_by_number, blocks_of, control_of, entries
from kvc.compiler.ir.text import program_text
from kvc.compiler.left_to_pytorch import backends_of, warn_of_left, without_pytorch
from kvc.compiler.passes import run_passes
from kvc.compiler.passes.base import check
from kvc.compiler.passes.choosing import passes_for
from kvc.compiler.passes.drop_dead_code import DropDeadCode
from kvc.compiler.plain_caches import warn_of_plain_caches
from kvc.compiler.position_limit import check_max_length, limited
from kvc.compiler.progress import reporting
from kvc.compiler.requests import check_mapping, check_request
from kvc.compiler.roles import check_roles
from kvc.compiler.spec import Method, StateSpec
from kvc.compiler.variants import Emitted, together
from kvc.recipes import DefaultRecipe, Recipe, Wanted, default_recipe, load_recipes
from kvc.schema.buckets import fixed_sizes
from kvc.schema.container import Progress
from kvc.schema.errors import CaptureError, CompileError
from kvc.schema.interrupts import keeping_interrupts
from kvc.schema.provenance import Provenance


@keeping_interrupts
def compile_program(
    model: nn.Module,
    methods: Sequence[Method] = (),
    recipe: Wanted | DefaultRecipe | None = None,
    metadata: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    states: Sequence[StateSpec] = (),
    max_copy_bytes: Mapping[str, int] | None = None,
    files: Files | None = None,
    max_length: int | None = None,
    calibrate: Calibrator | None = None,
) -> Bundle:
    """Compile methods of a model, which share its weights and its state.

    Args:
        model: the module; its weights are read when the bundle is saved, those of
            `empty_parameters` from the checkpoint that was loaded into them.
        methods: what to compile of it; at least one.
        recipe: a recipe, its name, or the path of a recipe file. Several, in a
            sequence or with commas between names, make one bundle for several
            backends, of which `load` picks the first that can run. None takes
            `cpu_fp32` where that leaves nothing to PyTorch, else `fp32`.
        metadata: settings to keep in the bundle; values that JSON can hold.
        progress: told of each stage and method; see `kvc.schema.container.Progress`.
        states: buffers whose sizes a session chooses.
        max_copy_bytes: method -> the most bytes that writing its states may copy in
            a call, not counting the bytes written.
        files: files to store in the bundle, such as a tokenizer, by plain name: the
            bytes, or the path of a file that is read when the bundle is saved.
        max_length: the most tokens of a session. Rings set no such limit; a cache of
            a fixed size does, and then the lower of both limits holds.
        calibrate: samples, such as `kvc.runtime.calibration.Samples("text.txt")`, for a
            recipe whose backend stores values as integers.

    Warns:
        LeftToPyTorch: backends leave operators to PyTorch, which the bundle so needs.

    Raises:
        CompileError: what is asked for is not a module with methods, a method does not
            have the signature of its role, or `max_length` cannot limit this program.
        CaptureError: a method cannot be traced.
        UnsupportedOps: with every op that has no kernel.
        StateConflict: two names share memory that a method writes, or two methods
            disagree about a state.
        CopyBudgetExceeded: writing the states of a method copies more than it may.
        ParametersEmpty: parameters have no memory, and no checkpoint filled them.
        RecipeError: the recipe is unknown or wrong, or its backend is.
        RecipesApart: several recipes do not make one program of the model.
        BadBuckets: the recipe's buckets do not fit the sizes of the model.
        CalibrationNeeded, CalibrationUnused: a backend needs samples and there are
            none, or the other way round.
        BadSamples, NotCalibrated, SamplesNotFinite, RangeUnbounded: the samples are
            not for this model, do not run all of it, or show that it cannot be stored
            as integers.
        BadFile: a file has a name that is not plain, or cannot be read.
        TokenizerTooLarge: metadata name a tokenizer that does not fit the model.
        BadBackend: the backend returned something wrong.
        CacheDtypeRefused: the recipe stores caches as int8 or float16, and one cannot
            be.
    """
    wanted = _recipes_of(recipe)
    recipes = (wanted.first,) if isinstance(wanted, DefaultRecipe) else wanted
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
    report = reporting(progress)
    # The outer one, so that it is the last that puts things back.
    with Unchanged(model, methods), stand_ins(model):
        captured = _capture_all(model, methods, tuple(states), report)
        report("optimise", 0, 1)
        imported = import_program(model, captured)
    check_roles(imported)
    samples = None if calibrate is None else Calibrating(calibrate, taken, report)
    make = partial(
        _made_by,
        imported=imported,
        metadata=metadata or {},
        max_copy_bytes=max_copy_bytes or {},
        samples=samples,
        report=report,
    )
    made = _made_by_all(wanted, make)
    emitted = together(made)
    program = limited(with_calibration(emitted.program, made), max_length)
    check_declared(program, metadata or {}, files or {})
    return Bundle(program, emitted.sources, taken)


def _recipes_of(
    recipe: Wanted | DefaultRecipe | None,
) -> tuple[Recipe, ...] | DefaultRecipe:
    if recipe is None:
        return default_recipe()
    return recipe if isinstance(recipe, DefaultRecipe) else load_recipes(recipe)


def _made_by_all(
    recipes: Sequence[Recipe] | DefaultRecipe, make: Callable[[Recipe], Emitted]
) -> list[Emitted]:
    """Return what each recipe makes, and warn of what is left to PyTorch."""
    if isinstance(recipes, DefaultRecipe):
        return [without_pytorch(recipes, make)]
    made = [make(one) for one in recipes]
    offered = {name for one in recipes for name in backends_of(one)}
    for one, each in zip(recipes, made, strict=True):
        warn_of_left(each.program, one, offered)
    return made


def _made_by(
    recipe: Recipe,
    imported: Program,
    metadata: Mapping[str, object],
    max_copy_bytes: Mapping[str, int],
    samples: Calibrating | None,
    report: Progress,
) -> Emitted:
    """Return what a recipe makes of an imported program."""
    backends = _backends_of(recipe)
    program = with_buckets(imported, recipe)
    program, _ = run_passes(passes_for(recipe, backends), program)
    program = DropDeadCode().run(declare(program))
    check(program, "declaring states")
    warn_of_plain_caches(program)
    report("lower", 0, 1)
    owners: dict[int, Backend] = {}
    for backend in backends:
        program = _lower(program, backend, owners)
    program, verdicts = _update_in_place(program)
    sources = {c.name: c.source for c in program.constants}
    provenance = _provenance(imported, recipe)
    emit = partial(emit_program, program, verdicts, metadata=_as_json(metadata))
    parts: Parts = {
        each: _partitions(program, each, owners, recipe) for each in backends
    }
    if samples is not None and any(each.calibrated for each in backends):
        plain = emit(plain_calls(parts), provenance)
        parts, used = samples.ranges(plain, sources, parts)
        provenance = replace(provenance, calibration=used)
    calls = [call for each in backends for call in _calls(program, each, parts[each])]
    check_copy_budget(_by_entry(program, verdicts), max_copy_bytes)
    report("plan", 0, 1)
    return Emitted(emit(calls, provenance), sources)


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


def _lower(program: Program, backend: Backend, owners: dict[int, Backend]) -> Program:
    """Cut a backend's partitions out of all methods, and of the blocks that are left.

    Args:
        program: that others may have taken partitions of.
        backend: that takes some.
        owners: whose each partition is, by its block; those of this backend are added.
    """
    blocks, growable = blocks_by_number(program), find_growable(program)
    done: list[IrMethod] = []
    waiting = list(reversed(entries(program)))
    count = max(blocks, default=-1) + 1
    grows = {s.name: s.grows for s in program.states if s.grows is not None}
    new: dict[int, Backend] = {}
    while waiting:
        method = waiting.pop()
        if backend.in_place:
            method = with_moves(method, grows)
        order = in_write_order(method, program)
        method = order.method
        taken = supported_nodes(backend, method)
        outlined = outline(
            method,
            taken,
            count,
            growable[method.name],
            order.waits,
            backend.in_place,
            backend.foreign_views(method),
        )
        done.append(outlined.method)
        run = [number for node in outlined.method.nodes for number in _blocks_at(node)]
        left = [number for number in run if number in blocks and number not in owners]
        waiting += [blocks[number] for number in reversed(left)]
        for number in run:
            if number in owners:
                done += [blocks[number], *blocks_of(blocks[number], blocks)]
        for partition in outlined.partitions:
            done += [partition.graph, *blocks_of(partition.graph, blocks)]
        new.update((count + i, backend) for i in range(len(outlined.partitions)))
        count += len(outlined.partitions)
    owners.update(new)
    changed = replace(program, methods=tuple(done))
    check(changed, f"lowering to {backend.name}")
    return changed


def _blocks_at(node: Node) -> tuple[int, ...]:
    control = control_of(node)
    return () if control is None else control.blocks


def _partitions(
    program: Program, backend: Backend, owners: Mapping[int, Backend], recipe: Recipe
) -> dict[str, list[Partition]]:
    """Return the proven partitions of a backend, by what calls them.

    Raises:
        BadBuckets: it needs fixed shapes, and the recipe does not give them.
    """
    blocks = blocks_by_number(program)
    partitions: dict[str, list[Partition]] = {}
    for method in program.methods:
        for node in method.nodes:
            for number in _blocks_at(node):
                if owners.get(number) is backend:
                    code = (blocks[number], *blocks_of(blocks[number], blocks))
                    if backend.fixed_shapes:
                        check_fixed(backend.name, code, program.symbols, recipe)
                    types = (v.type for graph in code for v in values_of(graph))
                    sizes = fixed_sizes(program.symbols, types)
                    partition = Partition(blocks[number], sizes)
                    partitions.setdefault(method.name, []).append(partition)
    return partitions


def _calls(
    program: Program, backend: Backend, partitions: Mapping[str, Sequence[Partition]]
) -> list[DelegateCall]:
    """Ask a backend what each of its partitions needs beside its code."""
    constants = {c.name: c for c in program.constants}
    lowered = lowered_partitions(backend, partitions, constants, program.symbols)
    return [
        DelegateCall(backend.name, partition.graph, made)
        for name, some in partitions.items()
        for partition, made in zip(some, lowered[name], strict=True)
    ]


def _update_in_place(
    program: Program,
) -> tuple[Program, dict[str, tuple[Verdict, ...]]]:
    """Order each method so that its writes happen in place.

    After lowering, since that reorders nodes.
    """
    proofs = prove_all(program)
    methods = tuple(proofs[method.name].method for method in program.methods)
    proven = replace(program, methods=methods)
    check(proven, "updating in place")
    return proven, {name: proof.verdicts for name, proof in proofs.items()}


def _by_entry(
    program: Program, verdicts: Mapping[str, tuple[Verdict, ...]]
) -> dict[str, tuple[Verdict, ...]]:
    """Return the verdicts of methods, with those of the blocks that they run."""
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


def _provenance(program: Program, recipe: Recipe) -> Provenance:
    text = program_text(program)
    return Provenance(
        kvc_version=version("kvc"),
        torch_version=torch.__version__,
        recipe=recipe.name,
        recipe_text=recipe.text,
        source_digest=hashlib.sha256(text.encode()).hexdigest(),
    )
