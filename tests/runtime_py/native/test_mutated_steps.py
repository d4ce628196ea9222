"""Mutated steps that the checker accepts stay within the memory of their operands.

`tools/dev/sanitize.sh` runs many more, with sanitizers.
"""

import pytest
from mutated_runs import run_mutations
from step_mutations import describe
from step_samples import Sample, samples

from kvc.runtime.native.library import find_library

_OF_EACH_KERNEL = 16


@pytest.fixture(scope="module")
def found() -> list[Sample]:
    return samples(most=3)


def test_mutated_steps_that_are_accepted_do_not_crash(found: list[Sample]):
    kernels = {one.kernel for one in found}
    outcome = run_mutations(found, 0, 0, _OF_EACH_KERNEL * len(kernels))
    assert [describe(found, 0, number) for number, _ in outcome.killed] == []
    assert {name for name in kernels if outcome.accepted[name]} == kernels
    accepted, tried = outcome.accepted.total(), outcome.tried.total()
    assert tried / 5 < accepted < tried * 4 / 5


def test_there_are_samples_of_all_kernels_that_files_may_ask_for(found: list[Sample]):
    kernels = {one.kernel for one in found}
    assert {*find_library().names()} - kernels == {"call", "ask"}
