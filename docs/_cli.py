"""MkDocs hook: write the reference of the command line from the typer application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark in ``cli.md`` by all commands with their arguments and options."""
    return markdown.replace(MARK, reference()) if MARK in markdown else markdown


def reference() -> str:
    """All commands as Markdown."""
    import typer

    from counterfoil.cli import application

    root = typer.main.get_command(application())
    return "\n".join((*_lines(root, "counterfoil"), *_recipes()))


def _recipes() -> Iterator[str]:
    """The options of ``counterfoil run`` and ``plan`` that each recipe has."""
    from counterfoil.core import registry
    from counterfoil.recipes.catalogue import recipe_arguments, recipe_function

    yield "\n## Recipes\n"
    for name in registry.names("recipe"):
        make = recipe_function(name)
        yield f"\n### counterfoil run {name}\n"
        yield f"{_first_paragraph(make.__doc__)}\n"
        if arguments := recipe_arguments(make):
            yield "| | | default |\n|---|---|---|"
        for argument in arguments:
            values = f" One of {', '.join(f'`{one}`' for one in argument.values)}."
            about = argument.about + (values if argument.values else "")
            default = "" if argument.default is False else f"`{argument.default}`"
            yield f"| `{argument.option}` | {about} | {default} |"


def _lines(command: Any, name: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from _lines(inner, f"{name} {word}")
        return
    yield f"\n## {name}\n"
    yield f"{_first_paragraph(command.help)}\n"
    yield "| | | default |\n|---|---|---|"
    for parameter in command.params:
        if parameter.name == "help":
            continue
        words = ", ".join(f"`{word}`" for word in parameter.opts)
        if parameter.param_type_name == "argument":
            words = f"`{str(parameter.metavar or parameter.name).upper()}`"
        help_text = (getattr(parameter, "help", None) or "").replace("|", "\\|")
        yield f"| {words} | {help_text} | {_default(parameter)} |"


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value is False or callable(value) or value in ((), []):
        return ""
    return f"`{value}`"
