import pytest
from click.testing import CliRunner
from sample_programs import write_sample

from kvc.tools.cli import main


@pytest.fixture
def kvc():
    """Run the command line in this process: kvc("dump", path).stdout."""
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, [str(a) for a in arguments])


@pytest.fixture
def sample(tmp_path):
    """The path of a small bundle that was made by hand."""
    write_sample(tmp_path / "sample.kvc")
    return tmp_path / "sample.kvc"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The path of a tiny byte-level decoder, compiled by the command line."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.kvc"
    result = CliRunner().invoke(
        main, ["compile", "tiny_decoder:factory", "--recipe", "fp32", "-o", str(path)]
    )
    assert result.exit_code == 0, result.output
    return path
