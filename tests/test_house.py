"""Architecture: import layers, import cycles, and one class for each name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

import counterfoil

PACKAGE = Path(counterfoil.__file__).parent
ROOT = PACKAGE.parents[1]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, ast.Module]:
    files = PACKAGE.rglob("*.py")
    return {module_name(path): ast.parse(path.read_text("utf-8")) for path in files}


def import_time_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported; functions and type checking are left out."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                yield from import_time_statements(orelse)
                continue
        yield statement
        for block in ("body", "orelse", "finalbody"):
            yield from import_time_statements(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from import_time_statements(handler.body)


def imported_modules(tree: ast.Module) -> set[str]:
    """Modules of the package that a module imports when it is imported itself."""
    names = set[str]()
    for statement in import_time_statements(tree.body):
        match statement:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=str(module), names=aliases):
                children = {f"{module}.{alias.name}" for alias in aliases}
                names |= (children & modules().keys()) or {module}
    return names & modules().keys()


@pytest.mark.papers
def test_import_layers(monkeypatch):
    monkeypatch.chdir(ROOT)
    # its configuration of logging would disable every logger that exists, for the tests after it
    monkeypatch.setattr("logging.config.dictConfig", lambda config: None)
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS


@pytest.mark.papers
def test_no_import_cycles():
    graph = {name: imported_modules(tree) - {name} for name, tree in modules().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.papers
def test_public_class_names_are_unique():
    found = defaultdict(list)
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}
