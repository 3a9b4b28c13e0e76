"""What holds for the package as a whole."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import counterfoil

SOURCE = Path(counterfoil.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages([str(SOURCE)], "counterfoil.")
    if not module.name.endswith("__main__")
)
HEAVY = ("torch", "numpy", "transformers", "matplotlib", "PIL", "rich.progress")


def in_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_public_names():
    assert counterfoil.__all__ == sorted(counterfoil.__all__, key=_order)
    for name in counterfoil.__all__:
        assert getattr(counterfoil, name) is not None
    assert set(dir(counterfoil)) == set(counterfoil.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = counterfoil.nothing


def _order(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_every_public_name_is_where_it_says():
    for name, place in counterfoil._MODULES.items():
        found = getattr(importlib.import_module(f"counterfoil.{place}"), name)
        assert getattr(counterfoil, name) is found
        assert found.__module__ == f"counterfoil.{place}"


@pytest.mark.papers
@pytest.mark.parametrize(
    "code",
    [
        "import counterfoil",
        "import counterfoil.cli",
        "from counterfoil.cli import main; main(['--help'])",
        "from counterfoil.cli import main; main(['run', '--help'])",
        "from counterfoil.cli import main; main(['runn'])",
        "from counterfoil.cli import main; main(['--version'])",
    ],
)
def test_what_needs_no_torch_imports_none(code):
    check = f"; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert in_process(code + check).splitlines()[-1] == "[]"


@pytest.mark.papers
def test_models_import_without_optional_libraries():
    """transformers, datasets, timm, triton and others are imported where they are used."""
    optional = "transformers", "tokenizers", "datasets", "timm", "matplotlib", "wandb", "triton"
    code = (
        "import sys, importlib\n"
        f"for name in {optional!r}:\n"
        "    sys.modules[name] = None\n"
        f"for module in {MODULES!r}:\n"
        "    importlib.import_module(module)\n"
    )
    in_process(code)


def defined(module_name: str) -> Iterator[tuple[str, object]]:
    """Public classes and functions of a module, and the public methods of the classes."""
    module = importlib.import_module(module_name)
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module_name:
            continue
        if inspect.isclass(value):
            yield name, value
            for inner, member in vars(value).items():
                plain = getattr(member, "__func__", getattr(member, "fget", member))
                if not inner.startswith("_") and inspect.isfunction(plain):
                    yield f"{name}.{inner}", getattr(value, inner)
        elif inspect.isfunction(value):
            yield name, value


@pytest.mark.papers
@pytest.mark.parametrize("name", MODULES)
def test_everything_public_says_what_it_is(name):
    assert importlib.import_module(name).__doc__, f"{name} has no docstring"
    silent = [found for found, value in defined(name) if not inspect.getdoc(value)]
    assert not silent


@pytest.mark.papers
def test_nothing_private_to_this_place_is_mentioned():
    words = ("/work/", "../shared", "golden/", "prototype/")
    for path in FILES:
        text = path.read_text("utf-8")
        assert not [word for word in words if word in text], path


def test_typed():
    assert (SOURCE / "py.typed").exists()
