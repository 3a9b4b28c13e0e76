"""What the documentation shows runs."""

from __future__ import annotations

import doctest
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

import counterfoil
from counterfoil.core import registry
from counterfoil.core.types import ModalityBatch, ScoreMatrix, Scores
from counterfoil.data.readers import load_dataset
from counterfoil.models.base import score_all_pairs
from counterfoil.models.layers.towers import GRU, Regions
from recipes_cases import recipe_of, recipe_words

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SKILL = ROOT / "skills" / "counterfoil" / "SKILL.md"
PAGES = sorted([ROOT / "README.md", SKILL, *(ROOT / "docs").rglob("*.md")])
PAPERS = sorted((ROOT / "docs" / "papers").glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def ran(page: str, place: int | str = 0) -> dict[str, object]:
    """Names of a block of a page, by its place or by what it holds."""
    names: dict[str, object] = {"__name__": "documentation"}
    found = blocks(ROOT / page, "python")
    if isinstance(place, str):
        found, place = [block for block in found if place in block], 0
    exec(compile(found[place], page, "exec"), names)
    return names


def test_quickstart_is_true():
    failed, tried = doctest.testfile(str(DOCS / "quickstart.md"), module_relative=False)
    assert tried >= 3
    assert failed == 0


def test_plain_losses_of_the_page():
    loss = ran("docs/extending.md", "class LearnedMargin")["loss"]
    values = loss(torch.tensor([[0.9, 0.8], [0.1, 0.7]], requires_grad=True))
    assert values.keys() == {"entropy", "margin"}
    assert all(value.requires_grad for value in values.values())
    assert ran("docs/extending.md", "SupConLoss(temp")["loss"].needs.vectors


def test_loss_of_the_page():
    loss_fn = ran("docs/extending.md", "class SoftMargin")["SoftMargin"]()
    scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]], requires_grad=True)
    matrix = ScoreMatrix(scores, torch.eye(2).bool(), scores.diagonal())
    loss = loss_fn(Scores({"inference": matrix}))
    loss.backward()
    slow = sum(torch.nn.functional.softplus(torch.tensor(10 * gap)) / 10 for gap in (-0.1, -0.6))
    torch.testing.assert_close(loss.detach(), slow)
    assert scores.grad[0, 1] > 0 > scores.grad[0, 0]


def test_own_module_of_the_page():
    names = ran("docs/extending.md", "class TwoEncoders")
    result = counterfoil.evaluate(names["model"], load_dataset("scenes:images=20")["test"])
    assert result.rsum > 0
    del registry._added["model", "mine"]


def test_model_of_the_page():
    model_class = ran("docs/extending.md", "class LateInteraction")["LateInteraction"]
    model = model_class(image=Regions(features=5, width=8), text=GRU(words=9, width=8)).eval()
    lengths = torch.tensor([3, 1, 2])
    mask = torch.arange(3) < lengths[:, None]
    images = model.encode_images(ModalityBatch(torch.arange(3), torch.randn(3, 3, 5), mask))
    texts = model.encode_texts(ModalityBatch(torch.arange(3), torch.randint(4, 9, (3, 3)), mask))
    torch.testing.assert_close(
        model.score_matrix(images, texts.rows(slice(2))),
        score_all_pairs(model.score_pairs, images, texts.rows(slice(2))),
    )


def test_reader_of_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_added", dict(registry._added))
    assert ran("docs/extending.md", "def read_pairs")
    (tmp_path / "mine.pairs").write_text("a.png\tred\na.png\tdark\n")
    for given in (tmp_path, tmp_path / "mine.pairs"):
        assert load_dataset(given).texts == ["red", "dark"]


def test_data_set_of_the_page():
    assert ran("docs/extending.md", "DatasetEntry(")["data"].texts == ["dogs by the sea"]


@pytest.mark.parametrize(
    "page, place",
    [
        ("docs/extending.md", "recipe = Recipe("),
        ("docs/quickstart.md", -1),
        ("docs/generated.md", 0),
    ]
    + [(f"docs/papers/{paper}.md", 0) for paper in ("aoq", "ndgl")],
)
def test_recipe_of_the_page(page, place):
    from counterfoil.pipelines.pipeline import Recipe

    assert isinstance(ran(page, place)["recipe"], Recipe)


def test_loss_with_mined_negatives_of_the_page():
    names = {"cf": counterfoil}
    exec(blocks(DOCS / "negatives.md", "python")[1], names)
    assert names["scores"].grad is not None


def test_recipes_of_the_page_exist():
    from counterfoil.papers.aoq import recipe as aoq
    from counterfoil.papers.systems import NAMES
    from counterfoil.pipelines.overrides import apply_overrides

    assert ran("docs/recipes.md")["recipe"].name
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in (*NAMES, *aoq.VARIANTS))
    lines = [
        ln for block in blocks(ROOT / "docs/recipes.md", "console") for ln in block.split("\n")
    ]
    for line in lines:
        words = shlex.split(line)
        settings = [word for before, word in pairwise(words) if before == "--set"]
        if len(words) > 2 and words[1] in ("plan", "run"):
            assert apply_overrides(recipe_of(recipe_words(line)), settings)


def test_the_loop_over_settings(tmp_path, monkeypatch):
    import counterfoil.cli

    small = ["--data", "scenes:images=36", "--smoke", "--set", "*.batch=16"]
    for tower in ("image", "text"):
        small += ["--set", f"*.model.{tower}.width=16"]
    run = counterfoil.cli.main
    monkeypatch.setattr(counterfoil.cli, "main", lambda words: run([*words, *small]))
    monkeypatch.chdir(tmp_path)
    found = ran("docs/recipes.md", -2)["found"]
    assert list(found) == [f"runs/rates/{r}-{b}" for r in ("2e-4", "5e-4") for b in (64, 128)]
    assert all(0 <= rsum <= 600 for rsum in found.values())


def test_recipe_of_written_negatives():
    from counterfoil.pipelines.pipeline import Recipe, stage_digests

    recipe = ran("docs/recipes.md", 1)["recipe"]
    assert isinstance(recipe, Recipe)
    assert set(stage_digests(recipe, "data")) == {"aligned", "pretrained", "student"}


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.name)
def test_what_pages_of_papers_name_exists(page):
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:tests|docs|src)/[\w./-]+)`", text)
    assert paths
    for path in paths:
        assert (ROOT / path).exists(), f"{page.name} names {path}"
    for name in re.findall(r"`(counterfoil(?:\.\w+)+)`", text):
        assert resolve_name(name), f"{page.name} names {name}"
    for line in re.findall(r"`counterfoil (?:run|plan) [^`]+`", text):
        assert recipe_of(recipe_words(line.strip("`"))), line


def test_what_the_page_on_the_build_names_exists():
    text = (DOCS / "how-it-is-built.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "counterfoil"
    places = re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.py)?|[\w-]+\.py)`", text)
    assert len(places) > 40
    for place in places:
        assert (
            ROOT / place if place.startswith(("tests/", "src/")) else source / place
        ).exists(), place
    named = re.findall(r"`([\w/]+\.py)` `(\w+)`", text)
    assert len(named) > 15
    for place, name in named:
        defined = rf"^\s*(?:(?:def|class) {name}\b|{name}\b.* = )"
        assert re.search(defined, (source / place).read_text("utf-8"), re.MULTILINE), (place, name)


def test_the_layers_of_the_page_on_the_build_are_those_that_are_checked():
    rooms = blocks(DOCS / "how-it-is-built.md", "text")[-1].splitlines()
    shown = [line.split("   ")[0].split(" · ") for line in rooms]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    assert [sorted(row) for row in shown] == [sorted(row.split(" | ")) for row in layers]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page):
    import typer

    from counterfoil.cli import application

    command = typer.main.get_command(application())
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    for line in (line for line in lines if line.startswith("counterfoil ")):
        words = shlex.split(line.split("  #")[0])[1:]
        group = command
        while hasattr(group, "commands"):
            group = group.commands[words.pop(0)]
        group.make_context(group.name, words, resilient_parsing=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_public_names_of_the_pages_exist(page):
    text = "\n".join(blocks(page, "python"))
    assert set(re.findall(r"\bcf\.(\w+)", text)) <= set(counterfoil.__all__)
    for name in re.findall(r"\bcf\.losses\.(\w+)", text):
        assert resolve_name(f"counterfoil.losses.{name}")
    for module, names in re.findall(
        r"^from (counterfoil[\w.]*) import ([\w, ]+)$", text, re.MULTILINE
    ):
        for name in names.split(", "):
            assert resolve_name(f"{module}.{name}".partition(" as ")[0])


def test_links_of_the_page_for_agents_lead_somewhere():
    targets = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text(encoding="utf-8"))
    assert len(targets) > 8
    assert all((DOCS / target).is_file() for target in targets)


def test_everything_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages == set(re.findall(r"[\w/-]+\.md", nav[nav.index("nav:") :]))
