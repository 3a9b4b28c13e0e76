"""What messages, docstrings and pages name is there: commands, their options, names in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import counterfoil
from counterfoil.core import registry
from counterfoil.core.shipped import SHIPPED
from counterfoil.recipes.catalogue import recipe_arguments, recipe_function

SOURCE = Path(counterfoil.__file__).parent
ROOT = SOURCE.parents[1]
PAGES = [ROOT / "README.md", ROOT / "skills/counterfoil/SKILL.md", *(ROOT / "docs").rglob("*.md")]
FILES = sorted(SOURCE.rglob("*.py"))
QUOTED = re.compile(r"(?<!`)(`{1,2})(?!`)([^`]+?)\1(?!`)")
HOLE = "\N{HORIZONTAL ELLIPSIS}"  # what an f-string fills in


@cache
def source() -> tuple[list[tuple[Path, str]], frozenset[str]]:
    """Every text in the source, and every name that its code defines or uses.

    An f-string has a sign for what it fills in.
    """
    texts, names = list[tuple[Path, str]](), set[str]()
    for path in FILES:
        names |= set(path.relative_to(SOURCE).with_suffix("").parts)
        inside = set[int]()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):  # from the outside in
            match node:
                case ast.JoinedStr():
                    inside |= {id(part) for part in node.values}
                    parts = [getattr(part, "value", None) for part in node.values]
                    filled = (part if isinstance(part, str) else HOLE for part in parts)
                    texts.append((path, "".join(filled)))
                case ast.Constant(value=str(text)):
                    if id(node) not in inside:
                        texts.append((path, text))
                    if text.isidentifier():  # such as the name of an environment variable
                        names.add(text)
            for field in ("id", "attr", "name", "arg"):
                if isinstance(found := getattr(node, field, None), str):
                    names.add(found)
    return texts, frozenset(names)


def pages() -> list[tuple[Path, str]]:
    """The prose of the pages; what their blocks say is run or parsed by other tests."""
    read = ((page, page.read_text("utf-8")) for page in PAGES)
    return [(page, re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)) for page, text in read]


@cache
def commands() -> dict[str, Any]:
    """Every command and group by its words."""
    import typer

    from counterfoil.cli import application

    def below(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        yield words, command
        for word, inner in getattr(command, "commands", {}).items():
            yield from below(inner, f"{words} {word}")

    return dict(below(typer.main.get_command(application()), "counterfoil"))


def options_of(command: Any) -> set[str]:
    return {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}


@cache
def options() -> frozenset[str]:
    """Of every command, and the arguments of recipes."""
    recipes = {
        f"--{argument.name.replace('_', '-')}"
        for name in registry.names("recipe")
        for argument in recipe_arguments(recipe_function(name))
    }
    return frozenset(recipes.union(*(options_of(command) for command in commands().values())))


def stale_commands(text: str) -> Iterator[str]:
    """Commands of ours in backquotes that are none, or have no such option."""
    for _, quoted in QUOTED.findall(text):
        words = quoted.split()
        if not words or words[0] != "counterfoil":
            continue
        known, command = "counterfoil", commands()["counterfoil"]
        for word in words[1:]:
            if not hasattr(command, "commands") or not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            known = f"{known} {word}"
            command = commands().get(known)
            if command is None:
                yield quoted
                break
        if command is not None:
            given = set(re.findall(r"(?<!\S)--[a-z][\w-]*", quoted))
            given -= options_of(commands()["counterfoil"])  # such as --import, of every verb
            # a verb that is filled in may have any option, and a recipe those of its function
            recipe = words[2:3] if known in TAKES_RECIPES else []
            if recipe and recipe[0] not in registry.names("recipe"):
                continue  # of a recipe of one's own
            open_ended = hasattr(command, "commands") or recipe
            if given - options_of(command) - (options() if open_ended else set()):
                yield quoted


def stale_options(text: str) -> Iterator[str]:
    """Options in backquotes that no command has."""
    for _, quoted in QUOTED.findall(text):
        option = re.match(r"--[a-z][a-z0-9-]+", quoted)
        if option and option[0] not in options() | OTHER_OPTIONS:
            yield option[0]


def is_in_package(parts: list[str]) -> bool:
    """Return True if a module has the name that follows it, or nothing follows."""
    place = SOURCE
    for number, part in enumerate(parts):
        if (place / part).is_dir():
            place /= part
            continue
        if (module := place / f"{part}.py").is_file():
            names = parts[number + 1 :]
        else:
            module, names = place / "__init__.py", parts[number:]
        text = module.read_text("utf-8")
        return all(re.search(rf"\b{name}\b", text) for name in names)
    return True


def stale_names(text: str) -> Iterator[str]:
    """Names in backquotes that look like ours and are not in the code."""
    for _, quoted in QUOTED.findall(text):
        parts = quoted.removesuffix("()").split(".")
        if not all(part.isidentifier() for part in parts) or parts[-1] == "txt":
            continue
        if parts[0] == "counterfoil":
            group = len(parts) == 2 and parts[1] in SHIPPED  # of entry points
            if not group and not is_in_package(parts[1:]):
                yield quoted
            continue
        ours = parts[0] == "cf" or CLASS.fullmatch(parts[0])
        if ours and not set(parts) - {"cf"} <= source()[1] | OTHER_NAMES:
            yield quoted


CLASS = re.compile(r"[A-Z][a-z]+(?:[A-Z][A-Za-z]*)+|[A-Z]+(?:_[A-Z]+)+")
TAKES_RECIPES = ("counterfoil run", "counterfoil plan")
# of other programs and packages
OTHER_OPTIONS = frozenset({"--csv-img-key", "--local-addr", "--rdzv-conf"})
OTHER_NAMES = frozenset({
    "EncoderProtocol", "SearchProtocol", "TrustedHostMiddleware", "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME", "NaN", "DataLoader", "SentenceTransformerTrainer", "SupConLoss",
})  # fmt: skip


@pytest.mark.parametrize("stale", [stale_commands, stale_options, stale_names])
def test_what_is_named_is_there(stale):
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in (*source()[0], *pages())
        if "`" in text
        for name in stale(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "stale, text, name",
    [
        (stale_commands, "write it with `counterfoil evaluat --json FILE`", "evaluat"),
        (stale_commands, "write it with ``counterfoil evaluate --jsn FILE``", "--jsn"),
        (stale_commands, "see `counterfoil recipe`", "recipe"),
        (stale_options, "give `--imagez-per-text 3`", "--imagez-per-text"),
        (stale_names, "use `HardNegativeListings`", "HardNegativeListings"),
        (stale_names, "see `counterfoil.training.trainer.judge`", "judge"),
        (stale_names, "see `cf.Trainers()`", "Trainers"),
    ],
)
def test_a_stale_name_is_found(stale, text, name):
    (found,) = stale(text)
    assert name in found
    assert not list(
        stale("`counterfoil evaluate --json FILE`, `--json`, `cf.Trainer`, `NegativeStore`")
    )
