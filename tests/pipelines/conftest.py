"""Reports without figures, which take longer to draw than the models of these tests to train."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recipes_cases import reports_without_figures


@pytest.fixture(autouse=True, scope="package")
def _no_figures() -> Iterator[None]:
    with reports_without_figures():
        yield
