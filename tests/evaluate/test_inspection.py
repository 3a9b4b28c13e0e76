"""The page about lists: what is shown, what is marked, and that none of it is markup."""

from __future__ import annotations

import re

import numpy as np
import pytest

from counterfoil.evaluate import figures
from counterfoil.evaluate.analysis_page import Rows
from counterfoil.evaluate.figures import Hardness
from counterfoil.evaluate.gallery import Shown
from counterfoil.evaluate.inspection import (
    Example,
    Examples,
    InspectionPage,
    Listed,
    write_inspection,
)
from counterfoil.evaluate.report import Provenance

PICTURE = "data:image/png;base64,AA=="
NASTY = "<script>alert('x')</script> & \"so\""
OF_IMAGE = Example(
    Shown("photo.png", PICTURE),
    (Shown("a dog", score=0.75),),
    (
        Listed(Shown(NASTY, place=1, score=0.5), ("similar words", "above positive")),
        Listed(Shown("a cat", place=2, score=None)),
    ),
)
OF_TEXT = Example(
    Shown("a dog"),
    (Shown("own.png", PICTURE),),
    (Listed(Shown("wrong.png", PICTURE, place=1_234, score=-0.25), ("above positive",)),),
)


def written(path, *examples: Example, figured: bool = False) -> str:
    gaps = (figures.hardness([Hardness("texts", np.linspace(-1, 1, 50))]),) if figured else ()
    page = InspectionPage(
        title=f"Lists {NASTY}",
        note="What was looked at",
        tables=(Rows("Hubs", ("lists", "never, %"), ((NASTY, "5.0"),), "A note.\nAnother."),),
        figures=gaps,
        groups=(Examples("Wrong ones", "How chosen.", examples),),
        provenance=Provenance("counterfoil diagnose"),
    )
    write_inspection(page, path)
    return path.read_text(encoding="utf-8")


def items(text: str) -> list[str]:
    """What is said by each item of the lists, without elements."""
    lists = "".join(re.findall(r'<ol class="found.*?</ol>', text, re.DOTALL))
    found = re.findall(r"<li.*?</li>", lists, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", one).split()) for one in found]


def test_captions_stand_in_order_with_scores_and_marks(tmp_path):
    text = written(tmp_path / "page.html", OF_IMAGE)
    own, first, second = items(text)
    assert own == "a dog · its own 0.75"
    assert first.startswith("1 &lt;script&gt;")
    assert first.endswith("· similar words · above positive 0.50")
    assert second == "2 a cat"
    assert text.count(f'src="{PICTURE}"') == 1


def test_pictures_have_words_for_who_does_not_see_them(tmp_path):
    text = written(tmp_path / "page.html", OF_TEXT)
    assert items(text) == ["its own", "1,234 · -0.25 above positive"]
    assert re.findall(r'alt="(.*?)"', text) == ["own.png", "wrong.png"]
    assert "“a dog”" in text


@pytest.mark.parametrize("example", [OF_IMAGE, OF_TEXT])
def test_nothing_is_markup_and_nothing_is_asked_for(example, tmp_path):
    text = written(tmp_path / "page.html", example, figured=True)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "<svg" in text
    assert all(note in text for note in ("A note.", "Another.", "How chosen."))


def test_an_anchor_without_negatives_shows_its_own(tmp_path):
    text = written(tmp_path / "page.html", Example(OF_TEXT.anchor, OF_TEXT.own, ()))
    assert f'src="{PICTURE}"' in text
    assert items(written(tmp_path / "empty.html", Example(OF_TEXT.anchor, (), ()))) == []


def test_a_page_that_fails_leaves_none(tmp_path):
    broken = Example(Shown("a dog"), (), (Listed(Shown("b", score="high")),))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        written(tmp_path / "page.html", broken)
    assert list(tmp_path.iterdir()) == []
