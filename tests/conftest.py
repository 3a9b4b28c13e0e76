"""Every test runs offline, on one thread, from one seed, with a cache of its own."""

import gc
import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
os.environ["NUMBA_DISABLE_JIT"] = "1"  # ranx would compile for a minute

import pytest
import torch
from hypothesis import settings

# no deadline: machines are shared; the same examples everywhere; nothing written to the tree
settings.register_profile("counterfoil", deadline=None, derandomize=True, database=None)
settings.load_profile("counterfoil")


TESTS = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays: looking through it for garbage takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    before = os.environ.get("COUNTERFOIL_CACHE")
    os.environ["COUNTERFOIL_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:  # no test pulls the plug
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
    if before is None:
        del os.environ["COUNTERFOIL_CACHE"]
    else:
        os.environ["COUNTERFOIL_CACHE"] = before


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def chromium():
    """Starts headless Chromium, playwright's own or the system's, with further arguments."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        own = Path(running.chromium.executable_path)
        names = "chromium", "chromium-browser", "google-chrome"
        found = str(own) if own.is_file() else next(filter(None, map(shutil.which, names)), None)
        if found is None:
            pytest.skip("no Chromium is installed")
        yield lambda *args: running.chromium.launch(executable_path=found, args=args)


@pytest.fixture(scope="module")
def browser(chromium):
    """Headless Chromium."""
    opened = chromium()
    yield opened
    opened.close()


# `make test` runs the library's tests twice over, and each of them once: first on a copy of the
# package without `counterfoil.papers`, then what that left out, which is what needs the papers.

HAS_PAPERS = find_spec("counterfoil.papers") is not None
assert not (HAS_PAPERS and os.environ.get("COUNTERFOIL_TESTS") == "library"), "not hidden"
DONE = os.environ.get("COUNTERFOIL_TESTS_DONE")  # file of the tests that passed without papers
THEIRS = {"vilt", "uniter", "scan", "vsrn", "hrem"}  # models by which parameters are named
GROWS = re.compile(r"registry\.|walk_packages")  # where files take cases from what is installed
_passed, _others = set(), set()
_done = set(Path(DONE).read_text().splitlines()) if DONE and Path(DONE).is_file() else set()


def pytest_ignore_collect(collection_path):
    if HAS_PAPERS:  # a file whose every test is done is not even imported
        done = _done and collection_path.suffix == ".py"
        return True if done and str(collection_path.relative_to(TESTS.parent)) in _done else None
    name = collection_path.name  # what 0.1 saved are runs of the papers
    theirs = collection_path.parent == TESTS and (name.startswith("papers") or name == "saved")
    return True if theirs else None


def pytest_collection_modifyitems(config, items):
    if not HAS_PAPERS:
        for item in items:
            words = set(re.split(r"\W+|_", getattr(getattr(item, "callspec", None), "id", "")))
            if words & THEIRS or item.get_closest_marker("papers"):
                item.add_marker(pytest.mark.skip(reason="needs counterfoil.papers"))
    if HAS_PAPERS and _done:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in _done])
        items[:] = [item for item in items if item.nodeid not in _done]


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        _passed.add(report.nodeid)
    elif not report.passed:
        _others.add(report.nodeid)


def pytest_sessionfinish(session):
    if DONE and not HAS_PAPERS and not hasattr(session.config, "workerinput"):
        files, left = ({test.split("::")[0] for test in tests} for tests in (_passed, _others))
        done = {file for file in files - left if not GROWS.search(Path(file).read_text())}
        Path(DONE).write_text("\n".join(sorted(_passed | done)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    report = yield
    return _without_papers(report, call)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _without_papers(report, report.call)


def _without_papers(report, call):
    """Skip where a test imports something of the papers; the library itself may not."""
    error = call.excinfo.value if call.excinfo else None
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    if HAS_PAPERS or error is None or not (error.name or "").startswith("counterfoil.papers"):
        return report
    trace, last = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        last = last if "importlib" in file else file
        trace = trace.tb_next
    if TESTS in Path(last).parents:
        report.outcome = "skipped"
        report.longrepr = (str(report.nodeid), 0, "needs counterfoil.papers")
    return report
