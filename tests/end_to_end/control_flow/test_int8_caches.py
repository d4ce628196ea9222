"""A cache that a branch writes cannot be int8, whatever others a model has."""

import pytest
from branching_caches import InBranchAndBeside, branch_method

from kvc.compiler import compile_program
from kvc.recipes import load_recipe
from kvc.schema.errors import CacheNotInt8


def test_a_cache_that_a_branch_writes_is_refused_by_name():
    recipe = load_recipe("fp32", cache="int8")
    with pytest.raises(CacheNotInt8, match=r"state k .*kvc::cond .* overwrites it"):
        compile_program(InBranchAndBeside(), (branch_method(),), recipe=recipe)
