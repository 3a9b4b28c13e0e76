"""What the pages that are written let a browser do, whatever captions and names they hold."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

import counterfoil.report
from counterfoil.audit import AuditPage, AuditSection, Finding, ReviewItem, render_audit
from counterfoil.cli.search import write_hits_page
from counterfoil.evaluation.explain import ExplainedWord, Explanation
from counterfoil.evaluation.explanation_page import ExplainedCard, render_explanations
from counterfoil.evaluation.similarity_maps import SimilarityMaps, WordMap
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    Page,
    PageItem,
    Provenance,
    TableBlock,
    render_page,
)
from counterfoil.search.index import SearchHit

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>"
    "\" onclick=alert(4) ' onfocus=alert(5) autofocus <a href='javascript:alert(6)'> {{ 7 * 7 }}"
)
ITEM = PageItem(HOSTILE, None, marks=(HOSTILE,))
BOX = (0.0, 0.0, 1.0, 1.0)
MADE = Provenance(HOSTILE, recipe=HOSTILE)


def blocks(folder: Path) -> str:
    card = ExampleCard(ITEM, HOSTILE, (CardColumn(HOSTILE, HOSTILE, (ITEM,)),))
    table = TableBlock(HOSTILE, (HOSTILE, HOSTILE), ((HOSTILE, HOSTILE), (HOSTILE,)), HOSTILE)
    sections = (CardSection(HOSTILE, HOSTILE, (card,)),)
    return render_page(Page(HOSTILE, HOSTILE, HOSTILE, MADE, tables=(table,), sections=sections))


def audit(folder: Path) -> str:
    item = ReviewItem(HOSTILE, HOSTILE, HOSTILE, ("keep", "fix"), ITEM, HOSTILE, proposed=HOSTILE)
    section = AuditSection("leaked", HOSTILE, HOSTILE, 1, 1, (Finding((item,), ITEM, (HOSTILE,)),))
    return render_audit(
        AuditPage(HOSTILE, HOSTILE, (HOSTILE,), (HOSTILE,), (section,), (), HOSTILE, MADE)
    )


def explanations(folder: Path) -> str:
    found = Explanation(HOSTILE, 0.1, (ExplainedWord(HOSTILE, 0, len(HOSTILE), doubt=0.9),))
    cards = [ExplainedCard(ITEM, found, 0.5, place) for place in range(2)]
    return render_explanations(
        cards, title=HOSTILE, headline=HOSTILE, protocol=HOSTILE, provenance=MADE
    )


def maps(folder: Path) -> str:
    drawn = SimilarityMaps("similarity", (WordMap(HOSTILE, 0, 9, (0.1, 0.2)),), (BOX, BOX))
    found = Explanation(HOSTILE, 0.1, (ExplainedWord(HOSTILE, 0, 9, gain=0.1),), maps=drawn)
    seen = PageItem(HOSTILE, "data:image/png;base64,AA==")
    cards = [ExplainedCard(seen, found, 0.5, place) for place in range(2)]
    return render_explanations(
        cards, title=HOSTILE, headline=HOSTILE, protocol=HOSTILE, provenance=MADE
    )


def hits(folder: Path) -> str:
    found = [SearchHit(1, 0.5, HOSTILE, HOSTILE, (HOSTILE,), None)]
    write_hits_page(HOSTILE, found, "captions", HOSTILE, folder / "hits.html", lambda hit: None)
    return (folder / "hits.html").read_text()


class Reader(HTMLParser):
    """Policy and scripts of a page, and attributes that would run something."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.scripts, self.handlers = "", list[str](), list[str]()
        self.sources, self.running = list[str](), False

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if given.get("http-equiv") == "Content-Security-Policy":
            assert not self.scripts  # it holds for what comes after it
            self.policy = given["content"]
        self.handlers += [name for name in given if name.startswith("on")]
        self.sources += [given[name] for name in ("src", "href", "action") if name in given]
        self.running = tag == "script" and given.get("type") != "application/json"
        if self.running:
            assert "src" not in given
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.running = False

    def handle_data(self, data):
        if self.running:
            self.scripts[-1] += data


@pytest.mark.parametrize("written", [blocks, audit, explanations, maps, hits])
def test_no_script_runs_but_the_pages_own(written, tmp_path):
    page = Reader()
    page.feed(written(tmp_path))
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    digests = [hashlib.sha256(script.encode()).digest() for script in page.scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    assert rules["script-src"] == (allowed or "'none'")
    assert len(page.scripts) == (written in (audit, maps))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data:"
    assert page.handlers == []
    assert all(source.startswith(("data:", "#")) for source in page.sources)


@pytest.mark.papers
def test_every_page_is_made_of_the_one_with_the_policy():
    folder = Path(counterfoil.report.__file__).parent / "templates"
    pages = {path.name for path in folder.iterdir() if "{% block main %}" in path.read_text()}
    assert pages == {"page.html.j2", "document.html.j2", "explain.html.j2", "audit.html.j2"}
    for name in pages - {"page.html.j2"}:
        assert (folder / name).read_text().startswith('{% extends "page.html.j2" %}')
    sources = Path(counterfoil.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "<body" in path.read_text().lower()] == []
