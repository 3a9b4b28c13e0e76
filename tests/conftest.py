"""Every test runs offline, on one thread, from one seed, with a cache of its own."""

import os
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"

import pytest
import torch
from hypothesis import settings

# no deadline: machines are shared; the same examples everywhere; nothing written to the tree
settings.register_profile("counterfoil", deadline=None, derandomize=True, database=None)
settings.load_profile("counterfoil")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    before = os.environ.get("COUNTERFOIL_CACHE")
    os.environ["COUNTERFOIL_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    torch.set_num_threads(1)
    yield
    if before is None:
        del os.environ["COUNTERFOIL_CACHE"]
    else:
        os.environ["COUNTERFOIL_CACHE"] = before


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium: playwright's own, or the system's."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        own = Path(running.chromium.executable_path)
        found = str(own) if own.is_file() else shutil.which("chromium")
        found = found or shutil.which("google-chrome")
        if found is None:
            pytest.skip("no Chromium is installed")
        opened = running.chromium.launch(executable_path=found)
        yield opened
        opened.close()
