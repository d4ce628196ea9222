import pytest
from tiny_decoder import factory

from kvc.compiler import compile_program


@pytest.fixture(scope="session")
def fast(tmp_path_factory):
    """The path of a tiny decoder whose methods the backend cpu runs."""
    path = tmp_path_factory.mktemp("page") / "fast.kvc"
    spec = factory()
    compile_program(spec.model, spec.methods, "cpu_q8", states=spec.states).save(path)
    return path
