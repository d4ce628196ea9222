"""What a program is: what its identity is made of, and what not."""

from dataclasses import replace

import numpy as np
import pytest
from drafting_models import CHUNK, CONFIG, decoder, write_decoder

from kvc.compiler import compile_program
from kvc.compiler.models.demo import decoder_caches, decoder_methods
from kvc.runtime import BadSnapshot, load
from kvc.schema.container import BundleFile, join_bundle, split_bundle
from kvc.schema.identity import identity
from kvc.schema.provenance import Provenance


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_decoder(tmp_path_factory.mktemp("identity") / "whole.kvc")


def read(path):
    with BundleFile(path) as file:
        return file.program, file.digest, file.identity


def compiled(recipe="fp32", methods=slice(None), noise=0.0, **options):
    states = options.pop("states", [decoder_caches(CONFIG)])
    chosen = decoder_methods(CONFIG, CHUNK, True)[methods]
    return compile_program(
        decoder(noise), chosen, states=states, recipe=recipe, **options
    )


def test_where_blobs_lie_is_no_part_of_it(bundle, tmp_path):
    _, digest, found = read(bundle)
    small, whole = tmp_path / "small.kvc", tmp_path / "again.kvc"
    split_bundle(bundle, small)
    join_bundle(small, whole)
    assert read(small)[1] != digest
    assert read(small)[2] == read(whole)[2] == found
    external = tmp_path / "external.kvc"
    saved = compiled(metadata={"tokenizer": "bytes"}).save(external, data="external")
    reusing = tmp_path / "reusing.kvc"
    compiled(metadata={"tokenizer": "bytes"}).save(
        reusing, data="external", reuse=[saved.data_path]
    )
    assert read(external)[2] == read(reusing)[2] == found
    assert len({read(path)[1] for path in (bundle, small, external)}) > 1


def test_what_goes_along_is_no_part_of_it(bundle, tmp_path):
    program, digest, found = read(bundle)
    other = tmp_path / "other.kvc"
    files = {"tokenizer.json": b"{}", "a.txt": b"some text"}
    compiled(metadata={"a": "1"}, files=files).save(other)
    assert read(other)[1] != digest
    assert read(other)[2] == found
    elsewhere = Provenance("9", "9", "other", "text", "digest")
    assert identity(replace(program, provenance=elsewhere)) == found
    told = [replace(name, provenance="somebody") for name in program.names]
    assert identity(replace(program, names=tuple(told))) == found


def test_lines_of_code_are_no_part_of_it(bundle):
    program, _, found = read(bundle)
    method = program.methods[0]
    steps = [replace(one, source="moved:1") for one in method.graph.instructions]
    graph = replace(method.graph, instructions=tuple(steps))
    moved = replace(method, graph=graph)
    assert steps != list(method.graph.instructions)
    assert identity(replace(program, methods=(moved, *program.methods[1:]))) == found


def test_the_words_for_a_copy_are_no_part_of_it(bundle):
    program, _, found = read(bundle)
    method = program.methods[0]
    told = [replace(one, reason="in other words") for one in method.updates]
    assert told
    method = replace(method, updates=tuple(told))
    assert identity(replace(program, methods=(method, *program.methods[1:]))) == found


def copied_update(program):
    (first, *others) = program.methods
    (update, *updates) = first.updates
    update = replace(update, copies=(*update.copies, update.instruction))
    return replace(
        program, methods=(replace(first, updates=(update, *updates)), *others)
    )


def changed_weight(program):
    (first, *others) = program.blobs
    return replace(program, blobs=(replace(first, digest=bytes(32)), *others))


def shorter_weight(program):
    (first, *others) = program.blobs
    return replace(program, blobs=(replace(first, nbytes=first.nbytes + 1), *others))


def swapped_weights(program):
    (one, other, *more) = program.names
    pair = replace(one, blob=other.blob), replace(other, blob=one.blob)
    assert one.blob != other.blob
    return replace(program, names=(*pair, *more))


def renamed_state(program):
    (first, *others) = program.states
    return replace(program, states=(replace(first, name="other"), *others))


def fewer_methods(program):
    return replace(program, methods=program.methods[:-1])


def other_operator(program):
    (first, *others) = program.methods
    (step, *steps) = first.graph.instructions
    step = replace(step, op="aten::neg")
    graph = replace(first.graph, instructions=(step, *steps))
    return replace(program, methods=(replace(first, graph=graph), *others))


def other_payload(program):
    (first, *others) = program.delegates
    return replace(program, delegates=(replace(first, payload=b"\1"), *others))


CHANGES = [
    changed_weight,
    shorter_weight,
    swapped_weights,
    renamed_state,
    fewer_methods,
    other_operator,
    copied_update,
]


@pytest.mark.parametrize("change", CHANGES)
def test_all_that_computes_is_part_of_it(bundle, change):
    program, _, found = read(bundle)
    assert identity(change(program)) != found


def test_partitions_are_part_of_it(tmp_path):
    compiled("cpu_fp32").save(tmp_path / "cpu.kvc")
    program, _, found = read(tmp_path / "cpu.kvc")
    assert identity(other_payload(program)) != found


def test_models_and_recipes_that_compute_otherwise_have_other_identities(tmp_path):
    made = [
        compiled(),
        compiled("cpu_fp32"),
        compiled("cpu_q8"),
        compiled(noise=0.1),
        compiled(methods=slice(2)),
        compiled(states=[]),
    ]
    found = set()
    for number, one in enumerate(made):
        one.save(tmp_path / f"{number}.kvc")
        found.add(read(tmp_path / f"{number}.kvc")[2])
    assert len(found) == len(made)


def test_every_recipe_of_a_bundle_is_part_of_it(tmp_path):
    for name, recipes in {
        "two": ["cpu_fp32", "xnnpack_fp32"],
        "one": "cpu_fp32",
    }.items():
        compiled(recipes).save(tmp_path / name)
    assert read(tmp_path / "two")[2] != read(tmp_path / "one")[2]
    with load(tmp_path / "two", backend="cpu") as program:
        assert program.identity == read(tmp_path / "two")[2]


def test_a_saved_session_goes_on_with_the_bundle_split_and_joined(bundle, tmp_path):
    with load(bundle) as program, program.session() as session:
        session.prefill(np.array([[3, 1, 4]]))
        session.save(tmp_path / "saved")
        expected = session.decode(np.array([[1]]))
    split_bundle(bundle, tmp_path / "small.kvc")
    join_bundle(tmp_path / "small.kvc", tmp_path / "again.kvc")
    for name in ("small.kvc", "again.kvc"):
        with (
            load(tmp_path / name) as program,
            program.restore(tmp_path / "saved") as session,
        ):
            assert np.array_equal(session.decode(np.array([[1]])), expected)
    compiled(noise=0.1).save(tmp_path / "other.kvc")
    with load(tmp_path / "other.kvc") as program:
        own = program.identity[:16]
        with pytest.raises(BadSnapshot, match=rf"of program .*, this one is {own}"):
            program.restore(tmp_path / "saved")


def test_a_row_of_a_bundle_that_was_split_is_admitted(bundle, tmp_path):
    split_bundle(bundle, tmp_path / "small.kvc")
    with (
        load(bundle) as one,
        load(tmp_path / "small.kvc") as other,
        one.session() as first,
        other.session() as second,
    ):
        first.prefill(np.array([[3, 1, 4]]))
        second.admit(0, first)
        assert second.position == 3
