"""Files, commands, recipes, tables, classes and arguments on the pages of the papers exist."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import shlex
from enum import Enum
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

import counterfoil
from benchmarks.experiments.catalogue import tables
from counterfoil.core import registry
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.recipes.catalogue import recipe_arguments, recipe_function
from recipes_cases import recipe_of, recipe_words

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
PLACES = ("", "src/counterfoil/", "docs/")
PLACEHOLDERS = re.compile(r"(…|\.\.\.)")
FILE = re.compile(r"[\w./-]+\.(py|md|json)")
RECIPE = re.compile(r"[\w{},/.…-]+")
CALL = re.compile(r"([A-Z]\w+)(?:\((.*)\))?")


def spans(page: Path) -> list[str]:
    """The inline code of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def expanded(text: str) -> list[str]:
    """The names behind braces: a-{b,c} is a-b and a-c."""
    parts = re.split(r"\{([^}]*)\}", text)
    choices = [part.split(",") if n % 2 else [part] for n, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


@cache
def names() -> dict[str, list[Any]]:
    """All classes and functions of the package, by name."""
    known: dict[str, list[Any]] = {}
    for info in pkgutil.walk_packages(counterfoil.__path__, "counterfoil."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            known.setdefault(name, []).append(value)
            if isinstance(value, type) and issubclass(value, Enum):
                known.update((member, [member]) for member in value.__members__)
    return known


@cache
def runs() -> tuple[str, ...]:
    """All tables of experiments."""
    return tuple(table.name for table in tables())


def recipe_exists(name: str, words: list[str]) -> bool:
    """Whether a recipe has these options with these values; a value may be left open."""
    known = {argument.option: argument for argument in recipe_arguments(recipe_function(name))}
    while words:
        argument = known.get(words.pop(0))
        if argument is None:
            return False
        if argument.kind is not bool and words and words.pop(0) not in argument.values:
            return False
    return True


def command_of(words: list[str]) -> bool:
    import typer

    from counterfoil.cli import application

    group: Any = typer.main.get_command(application())
    while hasattr(group, "commands"):
        word = words.pop(0) if words else ""
        if word not in group.commands:
            return False
        group = group.commands[word]
    return True


def exists(span: str) -> bool:
    """Whether a span names nothing that there is not."""
    if span.startswith("counterfoil "):
        return command_of(span.split()[1:])
    if (words := span.split())[0] in registry.names("recipe"):
        return recipe_exists(words[0], words[1:])
    if FILE.fullmatch(span):
        return any((ROOT / place / span).exists() for place in PLACES)
    if RECIPE.fullmatch(span) and ("/" in span or ("-" in span and PLACEHOLDERS.search(span))):
        return all(
            any(re.fullmatch(pattern, run) for run in runs())
            for pattern in (
                ".+".join(map(re.escape, PLACEHOLDERS.split(name)[::2])) for name in expanded(span)
            )
        )
    if call := CALL.fullmatch(span):
        values = names().get(call[1])
        if values is None:
            return False
        arguments = re.findall(r"(\w+)=", re.sub(r"\(.*\)", "", call[2] or ""))
        return not arguments or any(
            set(arguments) <= set(inspect.signature(value).parameters)
            for value in filter(callable, values)
        )
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_that_a_page_names_exists(page):
    assert [span for span in spans(page) if not exists(span)] == []


# what a paper has: equations, tables, figures and the sections that a recipe follows
CONTENTS = {
    "aoq": {"Eq.": 6, "Table": 3, "Fig.": 6, "§": ("1", "3.2", "3.3", "4.1", "4.2", "4.3", "4.4")},
    "ndgl": {"Eq.": 6, "Table": 5, "Fig.": 4, "§": ()},
    "tags": {
        "Eq.": 10,
        "Table": 5,
        "Fig.": 4,
        "§": ("2.1.2", "2.3", "2.5", "3.2", "4.1", "4.2", "4.4"),
    },
}
ALSO = {  # what was said wrongly once
    "aoq": ("113,283", "113,287", "dev_first=true"),
    "ndgl": (
        "`ndgl --model chan-bert --like flickr30k --compare teachers`",
        "`ndgl --model chan-bert --like flickr30k --compare parts`",
        "`ndgl --model chan-bert --like flickr30k --compare batches`",
        "`ndgl --model gpo-bert --like flickr30k --compare mining`",
        "one pair of teachers",
    ),
    "tags": (
        "Negative Sample is Negative in Its Own Way",
        "three versions",
        "1 to 9",
        "VSRN",
        "| human check of 200 sentences | § 4.2",
        "0.1 and 0.001, also for MS-COCO, where Table 5 has 0.05 and 1e-4",
        "UNITER's** | 128 pairs a batch, gradients clipped at 2, weight decay 0.01",
    ),
}


def numbered(text: str, noun: str) -> set[int]:
    """The numbers that stand behind a noun: 'Eq. 4 and 5', 'Tables 1 and 2', 'Figs. 1a and 2'."""
    one, many = re.escape(noun), re.escape(noun.removesuffix(".") + "s" + "." * noun.endswith("."))
    return {
        int(digits)
        for found in re.findall(rf"(?:{many}|{one})((?:(?:,| and| to)? ?\d+[a-c]?)+)", text)
        for digits in re.findall(r"\d+", found)
    }


@pytest.mark.parametrize("name", CONTENTS)
def test_a_page_has_everything_that_its_paper_has(name):
    text = " ".join((ROOT / "docs" / "papers" / f"{name}.md").read_text("utf-8").split())
    for noun, count in CONTENTS[name].items():
        if isinstance(count, int):
            missing = set(range(1, count + 1)) - numbered(text, noun)
        else:
            missing = {section for section in count if not re.search(rf"§ {section}\b", text)}
        assert not missing, f"{name}.md lacks {noun} {missing}"
    for words in ALSO[name]:
        assert words in text


def test_numbers_behind_a_noun_are_found():
    text = "Eq. 4 and 5; Figs. 1a and 2 explain, Fig. 10; Tables 1 and 2, h = 7"
    assert numbered(text, "Eq.") == {4, 5}
    assert numbered(text, "Fig.") == {1, 2, 10}
    assert numbered(text, "Table") == {1, 2}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_of_the_commands_are_taken(page):
    lines = re.findall(r"^counterfoil (?:plan|run) [^#\n]+", page.read_text("utf-8"), re.MULTILINE)
    assert lines
    for line in lines:
        words = shlex.split(line)
        settings = [word for before, word in pairwise(words) if before == "--set"]
        assert apply_overrides(recipe_of(recipe_words(line)), settings)


@pytest.mark.parametrize(
    "span",
    [
        "counterfoil sweeps x",
        "tests/papers/test_nothing.py",
        "aoq/vsepp-flickr30k",
        "aoq --loss nothing",
        "ndgl --lists",
        "evidence/nothing",
        "NoSuchLoss",
        "OfflineTriplet(nothing=1)",
    ],
)
def test_what_does_not_exist_is_noticed(span):
    assert not exists(span)
