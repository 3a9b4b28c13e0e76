import contextlib
import io

import pytest

import recipes_cases
from cli_fixture_cases import analysed, printed  # noqa: F401 - of tests here
from cli_fixture_cases import models as plain_models  # noqa: F401 - of `models`


@pytest.fixture(scope="session")
def models(plain_models):  # noqa: F811 - a fixture
    """The models of the library's tests, and the run "run" of a paper's recipe."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert recipes_cases.aoq(plain_models / "run") == 0
    return plain_models
