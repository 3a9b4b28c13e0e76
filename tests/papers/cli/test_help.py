from __future__ import annotations

import re
import shlex

import pytest

import recipes_cases
from cli_cases import VERBS
from counterfoil.cli import main


def examples(command) -> list[str]:
    return re.findall(r"`(counterfoil [^`]+)`", command.epilog or "")


def test_all_verbs_are_there():
    names = {" ".join(words) for words in VERBS}
    assert names >= {
        *("plan", "run", "train", "mine", "evaluate", "search", "data check"),
        *("features", "diagnose", "papers convert", "papers import-lists", "papers export-lists"),
    }


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_help_shows_an_example(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*words, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Example" in shown
    found = examples(VERBS[words])
    assert found
    for line in found:
        assert line in shown


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_examples_parse(words):
    """Every option and argument of an example exists and has a value of its kind."""
    command = VERBS[words]
    for line in examples(command):
        typed = shlex.split(line)
        assert tuple(typed[1 : 1 + len(words)]) == words
        command.make_context("counterfoil", typed[1 + len(words) :])


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_option_is_explained(words):
    for parameter in VERBS[words].params:
        assert parameter.name == "help" or getattr(parameter, "help", None), parameter.name


def test_examples_of_recipes_exist():
    for words in (("plan",), ("run",)):
        for line in examples(VERBS[words]):
            recipe = re.match(r"counterfoil \w+ ([\w-]+(?: --(?:model|like) \S+)*)", line)
            assert recipes_cases.recipe_of(recipe[1])


@pytest.mark.parametrize("words", [[], ["data"]])
def test_nothing_shows_the_verbs(words, capsys):
    assert main(words) == 2
    shown = capsys.readouterr()
    assert "Usage" in shown.out
    assert not shown.err


def test_version(capsys):
    import counterfoil

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"counterfoil {counterfoil.__version__}"


SAME = {  # what many verbs take, by one name and with one sentence
    "--data": {"report"},  # whose data are those of the runs
    "--caption-column": set(),
    "--image-column": set(),
    "--minutes": set(),
}


@pytest.mark.parametrize("option", SAME)
def test_what_many_verbs_take_is_told_in_one_sentence(option):
    told = {
        parameter.help.removesuffix(" Repeatable.")
        for words, command in VERBS.items()
        if " ".join(words) not in SAME[option]
        for parameter in command.params
        if option in parameter.opts
    }
    assert len(told) == 1


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("diagnose", {"--output", "--json"}),
        ("explain", {"--output", "--json"}),
        ("foils", {"--output", "--json"}),
        ("evaluate", {"--json"}),
        ("mine", {"--output"}),
        ("export", {"--output"}),
        ("audit", {"--output"}),
        ("interpolate", {"--output"}),
        ("papers write rules", {"--output"}),
        ("papers write tags", {"--output"}),
    ],
)
def test_pages_numbers_and_new_folders_are_named_alike(line, names):
    command = VERBS[tuple(line.split())]
    assert names <= {name for parameter in command.params for name in parameter.opts}
