"""The verbs of the command line: their order, and those that are not installed."""

from __future__ import annotations

import pytest

from counterfoil import cli
from counterfoil.cli import main
from counterfoil.core import registry


def test_the_help_has_everyday_verbs_first_and_the_papers_in_one_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["--help"]) == 0
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    shown = [line.split()[0] for line in lines[lines.index("") :] if line.split()]
    verbs = [word for word in shown if word in registry.names("verb")]
    assert verbs == registry.names("verb")
    assert verbs[:4] == ["demo", "data", "audit", "evaluate"]
    assert verbs[-1] in ("run", "papers")  # where the papers are installed, they are the last
    assert not {"analyse", "write", "convert", "sweep"} & set(verbs)


@pytest.mark.parametrize("words", [["papers"], ["papers", "analyse", "curves", "runs/a"]])
def test_without_the_papers_their_verb_says_so(words, monkeypatch, capsys):
    owners = registry._owners
    monkeypatch.setattr(
        registry,
        "_owners",
        lambda kind: {n: p for n, p in owners(kind).items() if (kind, n) != ("verb", "papers")},
    )
    cli.application.cache_clear()
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "'papers' belongs to counterfoil.papers" in told
    assert "not installed" in told
    cli.application.cache_clear()


@pytest.fixture
def registered():
    """Adds a verb for one test."""
    added = []

    def add(name, part):
        cli.application.cache_clear()
        added.append(("verb", name))
        return registry.register.verb(name)(part)

    yield add
    for key in added:
        del registry._added[key]
    cli.application.cache_clear()


def test_a_function_is_a_verb(registered, capsys):
    def greet(name: str, times: int = 1) -> None:
        """Greet somebody."""
        print(f"hello {name}. " * times)

    registered("hello", greet)
    assert main(["hello", "Ada", "--times", "2"]) == 0
    assert capsys.readouterr().out == "hello Ada. hello Ada. \n"
    assert main(["hello"]) == 2
    assert "Missing argument 'name'" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "Greet somebody." in capsys.readouterr().out


def test_what_is_no_function_is_refused_as_a_verb(registered, capsys):
    registered("hello", "world")
    assert main(["hello"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "the verb 'hello' is 'world'; register a function" in told
