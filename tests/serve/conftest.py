"""An index of scenes with its models, and a page in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import explain_cases
import recipes_cases
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.search.index import build_index


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    recipes_cases.pixel_model(root / "pixels")
    if find_spec("counterfoil.papers"):  # a model that explains is one of theirs
        explain_cases.saved(root / "explainer")
    dataset = load_dataset("scenes:images=36")
    build_index(load_model(root / "pixels"), dataset, root / "index").close()
    return root


@pytest.fixture
def opened(browser, request) -> Iterator[Any]:
    """A page that records its requests and console messages."""
    scheme, width = getattr(request, "param", ("light", 1100))
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.asked, page.wrong = [], []
    page.on("request", lambda one: page.asked.append(one.url))
    page.on("console", lambda message: page.wrong.append(message.text))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.set_default_timeout(60_000)
    yield page
    page.close()
