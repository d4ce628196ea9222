"""Each check of bound lists, violated."""

from dataclasses import replace

import numpy as np
import pytest
from cached_models import Linear, simple_methods
from listed_bundles import changed_list, changed_tables, save_listed

from kvc.compiler import compile_program
from kvc.schema.bounds import evaluate_forms
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadProgram, LimitExceeded
from kvc.schema.verify import verify_program


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    bundle = compile_program(Linear(), simple_methods(), "cpu_fp32")
    path = tmp_path_factory.mktemp("bounds") / "linear.kvc"
    with BundleFile(save_listed(bundle, path), thorough=True) as file:
        return file.program


@pytest.fixture
def refused(program):
    def check(change, text, error=BadProgram):
        with pytest.raises(error, match=text):
            verify_program(replace(program, bounds=change(program.bounds)), "m.kvc")

    return check


def one_more(name):
    """Return a change that puts an id past all others at the end of a column."""

    def change(bounds):
        columns = bounds.columns if name in bounds.columns else None
        held = (columns or bounds.lists[0].columns)[name].copy()
        held[-1] = 1 << 30
        if columns:
            return changed_tables(bounds, **{name: held})
        return changed_list(bounds, 0, **{name: held})

    return change


def cut(name):
    """Return a change that leaves out the last entry of a column."""

    def change(bounds):
        if name in bounds.columns:
            return changed_tables(bounds, **{name: bounds.columns[name][:-1]})
        held = bounds.lists[0].columns[name][:-1]
        return changed_list(bounds, 0, **{name: held})

    return change


IDS = (
    *("term_products", "product_symbols", "layout_dims", "layout_strides"),
    *("operand_layouts", "operand_offsets", "operand_places", "step_kernels"),
    *("operands", "integers", "cursor_fields", "cursor_counts", "inputs", "outputs"),
)
RUNS = (
    *("term_ends", "product_ends", "layout_ends", "operand_ends", "integer_ends"),
    "number_ends",
)
PAIRS = (
    *("term_products", "layout_strides", "operand_places", "operand_layouts"),
    *("cursor_counts", "inputs", "outputs", "lowers", "uppers"),
)


@pytest.mark.parametrize("name", IDS)
def test_an_id_past_the_last_is_refused(refused, name):
    refused(one_more(name), r"id past|place past|cursor")


@pytest.mark.parametrize("name", RUNS)
def test_runs_that_do_not_cut_their_items_are_refused(refused, name):
    refused(one_more(name), f"{name} does not cut")
    refused(cut(name), "runs|no product|not cut|have no")


@pytest.mark.parametrize("name", PAIRS)
def test_columns_of_different_lengths_are_refused(refused, name):
    refused(cut(name), "no product|no stride|differ in length|no count|it has")


def changed(name, value):
    def change(bounds):
        held = bounds.lists[0].columns[name].copy()
        held[:] = value
        return changed_list(bounds, 0, **{name: held})

    return change


def test_bounds_that_are_no_sizes_are_refused(refused):
    refused(changed("lowers", -1), "no sizes")
    refused(changed("uppers", 0), "no sizes")
    refused(changed("uppers", 1 << 40), "no sizes")


def test_other_facts_of_a_list_are_checked(refused, program):
    def with_list(**facts):
        return lambda bounds: replace(
            bounds, lists=(replace(bounds.lists[0], **facts), *bounds.lists[1:])
        )

    refused(with_list(method=9), "its method does not exist")
    refused(with_list(scratch_nbytes=1 << 50), "scratch memory is too large")
    refused(lambda bounds: replace(bounds, identity=b"short"), "no digest")
    twice = (program.bounds.kernels[0],) * 2
    refused(lambda bounds: replace(bounds, kernels=twice), "twice")
    many = program.bounds.lists * 1000
    limit = lambda bounds: replace(bounds, lists=many)  # noqa: E731
    refused(limit, "bound lists", LimitExceeded)


def test_a_list_cannot_take_or_give_what_is_absent(refused):
    def absent(bounds):
        regions = bounds.columns["operand_regions"].copy()
        regions[int(bounds.lists[0].columns["inputs"][0])] = 0
        return changed_tables(bounds, operand_regions=regions)

    refused(absent, "is absent")


def test_an_operand_lies_in_a_cursor_of_its_list(refused):
    def other(bounds):
        regions, places = (
            bounds.columns[name].copy()
            for name in ("operand_regions", "operand_places")
        )
        first = int(bounds.lists[0].columns["operands"][0])
        regions[first], places[first] = 4, 99
        return changed_tables(bounds, operand_regions=regions, operand_places=places)

    refused(other, "a cursor that the list does not have")


def test_numbers_of_forms_have_limits(refused):
    def large(bounds):
        factors = bounds.columns["term_factors"].copy()
        factors[0] = 1 << 61
        return changed_tables(bounds, term_factors=factors)

    refused(large, "a number out of range")


def test_factors_of_forms_are_not_0(refused):
    def none(bounds):
        factors = bounds.columns["term_factors"].copy()
        factors[0] = 0
        return changed_tables(bounds, term_factors=factors)

    refused(none, "a number out of range")


def test_inputs_are_put_into_scratch_memory_and_no_operand_is_lent(refused):
    def other(region):
        def in_region(bounds):
            regions = bounds.columns["operand_regions"].copy()
            regions[int(bounds.lists[0].columns["inputs"][0])] = region
            return changed_tables(bounds, operand_regions=regions)

        return in_region

    refused(other(6), "not put into scratch memory")
    refused(other(5), "which no list has yet")


def test_a_number_that_varies_has_a_form(refused):
    added = np.zeros(1, np.uint32)
    refused(lambda b: changed_list(b, 0, varied_numbers=added), "no form|id past")


def test_forms_that_grow_too_large_are_no_numbers(program):
    factors = program.bounds.columns["term_factors"] * 0 + (1 << 59)
    columns = changed_tables(program.bounds, term_factors=factors).columns
    sizes = np.full(len(program.symbols), 1 << 20)
    with pytest.raises(OverflowError):
        evaluate_forms(columns, sizes)
