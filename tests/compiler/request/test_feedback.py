import warnings

import pytest

from kvc.compiler.request.feedback import warn_caller


def test_a_warning_is_of_the_line_that_called_kvc():
    with pytest.warns(UserWarning, match="so it is") as given:
        warn_caller(UserWarning("so it is"))
    assert given[0].filename == __file__


def test_a_warning_of_kvc_alone_is_of_its_outermost_line():
    code = compile("warn(UserWarning('so it is'))", "inner.py", "exec")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        exec(code, {"warn": warn_caller, "__name__": "kvc.some.place"})
    assert given[0].filename == __file__
