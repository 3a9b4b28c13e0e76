"""``counterfoil explain``: one caption, a data set, and what the terminal shows."""

from __future__ import annotations

import functools
import html
import json
from dataclasses import replace
from pathlib import Path

import pytest

import explain_cases as cases
import recipes_cases
from corpus_cases import write_picture
from counterfoil.cli.explain import print_caption, print_ranking, styled_caption, styled_correction
from counterfoil.evaluation import explain
from counterfoil.evaluation.explain import (
    CorrectedCaption,
    ExplainedWord,
    Explanation,
    WordCorrection,
)
from counterfoil.evaluation.explanation_page import ExplainedCard
from counterfoil.pipelines import plan
from counterfoil.report.page import PageItem
from recipes_cases import run


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    return cases.saved(tmp_path_factory.mktemp("models") / "words")


@pytest.fixture
def explained(capsys, tmp_path, monkeypatch):
    """What was printed in one line, the page, and the JSON or its lines."""
    monkeypatch.setattr(plan.console, "_width", 200)

    def explained(*words: object):
        page, out = tmp_path / "page.html", tmp_path / "out.json"
        capsys.readouterr()
        code = run("explain", *words, "--output", page, "--json", out)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        lines = out.read_text().splitlines()
        plain = json.loads(out.read_text()) if lines[0] == "{" else [*map(json.loads, lines)]
        return " ".join(shown.out.split()), html.unescape(page.read_text()), plain

    return explained


def test_one_caption(words, explained):
    caption = "A blue star [bold]above a square."
    told, page, plain = explained(
        words,
        cases.IMAGE,
        caption,
        "--data",
        cases.SCENES,
        "--threshold",
        0.45,
    )
    assert plain["caption"] == caption
    assert plain["image"] == cases.IMAGE
    doubted = [word for word in plain["words"] if word["doubt"] >= 0.45]
    assert doubted
    for word in plain["words"]:
        assert len(word["corrections"]) == (3 if word in doubted else 0)
        shown = f"{100 * word['doubt']:.0f} %"
        assert (f"{word['text']} [{shown}]" in told) == (word in doubted)
        assert f" {word['text']} {shown}" in told
    assert plain["corrected"] is not None
    assert f"score {plain['corrected']['score']:.3f}" in told
    assert page.count("data:image/") == 1
    assert "<ins>" in page
    assert "has no head" not in told + page


def test_a_model_without_heads(models, explained):
    told, page, plain = explained(models / "pixels", _picture(models), "a red dog")
    assert "Cannot tell whether the caption fits the picture" in told
    assert plain["verdict"] == "cannot tell"
    assert "the scores of this model were never compared" in told
    assert " head" not in told + page.split("</style>")[1].replace("headline", "")
    assert "gain without it" in told
    assert all(word["doubt"] is None for word in plain["words"])
    assert "no probability that a word is wrong" in page


def test_a_data_set_is_ranked(words, explained):
    told, page, plain = explained(
        words, "--data", cases.SCENES, "--split", "dev", "--top", 3, "--threshold", 0.4
    )
    dataset = cases.load_dataset(cases.SCENES).split("dev")
    assert {line["id"] for line in plain} == set(dataset.text_ids)
    worst = [max(word["doubt"] for word in line["words"]) for line in plain]
    assert worst == sorted(worst, reverse=True)
    assert [line["suspicion"] for line in plain] == worst
    assert page.count("<article") == 3
    assert page.index(plain[0]["image"]) <= page.index(plain[2]["image"])
    share = sum(doubt >= 0.4 for doubt in worst)
    assert f"{share} of {len(worst)} captions" in told
    assert f"{len(worst)} captions; greatest doubt first" in told


def test_captions_of_pictures_are_ranked_by_score(models, explained, tmp_path):
    write_picture(tmp_path / "a.png")
    rows = [{"image": "a.png", "captions": ["a red dog", "the snow", "dog " * 70]}]
    cases.write_lines(tmp_path / "captions.jsonl", rows)
    data = ("--data", tmp_path, "--split", "all")
    told, page, plain = explained(models / "pixels", *data)
    scores = [line["score"] for line in plain]
    assert scores == sorted(scores)
    assert page.count("data:image/") == 3
    assert "3 captions; lowest score first; 1 too long for the model" in told
    assert "too long: the model reads it up to" in page
    (cut,) = (line for line in plain if line["unread"] is not None)
    assert cut["caption"].startswith("dog dog")


def test_a_broken_run_leaves_nothing(models, tmp_path):
    write_picture(tmp_path / "a.png")
    rows = [{"image": "a.png", "captions": ["a red star", " "]}]
    cases.write_lines(tmp_path / "captions.jsonl", rows)
    before = sorted(tmp_path.iterdir())
    data = ("--data", tmp_path, "--split", "all")
    out = ("--output", tmp_path / "p.html", "--json", tmp_path / "o.jsonl")
    assert run("explain", models / "pixels", *data, *out) == 2
    assert sorted(tmp_path.iterdir()) == before


def test_a_stopped_audit_goes_on(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(explain, "CAPTION_BATCH", 7)
    data = ("--data", cases.SCENES, "--split", "dev", "--top", 2)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert run("explain", words, *data, "--json", whole) == 0
    shown = capsys.readouterr().out
    made, explain_pairs = [], explain.explain_pairs

    def stopping(*given):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(given[2])
        return explain_pairs(*given)

    monkeypatch.setattr(explain, "explain_pairs", stopping)
    run("explain", words, *data, "--json", out)
    assert not out.exists()
    parts = tmp_path / "out.jsonl.partial"
    assert len(list(parts.iterdir())) == 3
    monkeypatch.setattr(
        explain, "explain_pairs", lambda *given: made.append(given[2]) or explain_pairs(*given)
    )
    capsys.readouterr()
    for more, why in (
        ((), "add --resume to continue"),
        (("--resume", "--threshold", 0.3), "begun otherwise: threshold is"),
        (("--resume", "--split", "test"), "begun otherwise: data is"),
    ):
        assert run("explain", words, *data, "--json", out, *more) == 2
        assert why in " ".join(capsys.readouterr().err.split())
    assert len(made) == 2
    assert run("explain", words, *data, "--json", out, "--resume") == 0
    assert capsys.readouterr().out.replace("out.jsonl", "whole.jsonl") == shown
    assert out.read_bytes() == whole.read_bytes()
    assert not parts.exists()
    dataset = cases.load_dataset(cases.SCENES).split("dev")
    assert sorted(text for part in made for text in part) == sorted(dataset.texts), "each once"


def _picture(models: Path) -> Path:
    path = models / "picture.png"
    if not path.exists():
        write_picture(path)
    return path


DOUBTS = (0.25, 0.75, 0.5, 0.75, 0.0, 0.5)


@pytest.fixture
def audited(tmp_path, monkeypatch):
    """An audit of six captions whose doubts are known: what is shown, and the lines."""
    folder = tmp_path / "photos"
    write_picture(folder / "a.png")
    lines = [{"image": "a.png", "caption": f"caption {row}"} for row in range(len(DOUBTS))]
    cases.write_lines(folder / "captions.jsonl", lines)
    model = recipes_cases.pixel_model(tmp_path / "model")

    def made_up(model, dataset, plan, parts=None):
        for row, doubt in enumerate(DOUBTS):
            yield (
                row,
                Explanation(dataset.texts[row], -doubt, (ExplainedWord("c", 0, 1, doubt=doubt),)),
            )

    monkeypatch.setattr("counterfoil.evaluation.explain.explain_dataset", made_up)

    def audited(top: int, doubts: bool):
        out, shown = tmp_path / "lines.jsonl", []
        monkeypatch.setattr("counterfoil.evaluation.explain.has_doubt_head", lambda _: doubts)
        monkeypatch.setattr(
            "counterfoil.cli.explain.print_ranking", lambda cards, judged: shown.extend(cards)
        )
        words = ("--data", folder, "--split", "all", "--top", top, "--json", out)
        assert run("explain", model, *words) == 0
        kept = [json.loads(line) for line in out.read_text().splitlines()]
        return [card.explanation.caption[-1] for card in shown], kept

    return audited


@pytest.mark.parametrize("top", range(1, 8))
def test_the_most_suspicious_are_shown_and_of_equals_the_first(audited, top):
    order = sorted(range(len(DOUBTS)), key=lambda row: (-DOUBTS[row], row))
    shown, lines = audited(top, True)
    assert shown == [str(row) for row in order[:top]]
    assert [line["caption"][-1] for line in lines] == [str(row) for row in order]
    assert [line["suspicion"] for line in lines] == sorted(DOUBTS, reverse=True)


def test_by_score_the_lowest_come_first(audited):
    shown, lines = audited(2, False)
    assert shown == ["1", "3"]
    assert [line["suspicion"] for line in lines] == sorted(DOUBTS, reverse=True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("dog 7", "a dog"), "'dog 7' is no picture; give the path of one"),
        (("dog 7", "a dog", "--output", "."), "is a folder"),
        (("dog 7", "a dog", "--json", "."), "is a folder"),
        (("--data", "scenes", "--resume"), "--resume continues the file that --json has begun"),
    ],
)
def test_what_cannot_be_explained_is_refused_before_a_model_is_opened(words, told, capsys):
    assert run("explain", "no/model", *words) == 2
    assert told in capsys.readouterr().err


FOUND = Explanation(
    "A [red] dog runs.",
    0.125,
    (
        ExplainedWord("A", 0, 1, doubt=0.02),
        ExplainedWord("red", 3, 6, doubt=0.93, corrections=(WordCorrection("[blue]", 0.61),)),
        ExplainedWord("dog", 8, 11, doubt=0.5),
        ExplainedWord("runs", 12, 16, doubt=0.25),
    ),
    CorrectedCaption("A [blue] dog runs.", 0.875, ((2, 8),)),
)
GAINS = Explanation(
    "b c d",
    0.5,
    (
        ExplainedWord("b", 0, 1, gain=-0.2),
        ExplainedWord("c", 2, 3, gain=-0.3),
        ExplainedWord("d", 4, 5, gain=-0.1),
    ),
)


def card(found: Explanation = FOUND, place: int = 0) -> ExplainedCard:
    return ExplainedCard(PageItem(f"[b]image {place}"), found, 0.5, place)


@pytest.fixture
def told(monkeypatch, capsys):
    """What is printed, line by line, without blanks at the ends."""
    monkeypatch.setattr(plan.console, "_width", 120)

    def told(print_it, *words: object) -> list[str]:
        print_it(*words)
        return [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]

    return told


def test_doubted_words_bear_their_doubt():
    text = styled_caption(card())
    assert text.plain == "A [red [93 %]] dog [50 %] runs."
    tints = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert {word: tints[word] for word in ("red", "dog", "runs")} == {
        "red": "bold red",
        "dog": "red",
        "runs": "yellow",
    }
    assert "A" not in tints


def test_new_words_stand_between_signs():
    assert styled_correction(card()).plain == "A _[blue]_ dog runs."
    assert styled_correction(card(GAINS)).plain == ""


def test_one_caption_is_told_word_by_word(told):
    lines = told(print_caption, card())
    assert lines[0] == "A [red [93 %]] dog [50 %] runs."
    assert lines[1] == "[b]image 0: score 0.125"
    assert lines[2].split() == ["word", "doubt", "instead"]
    rows = [line.split(maxsplit=3) for line in lines[4:8]]
    assert rows == [
        ["A", "2", "%"],
        ["red", "93", "%", "[blue] 61 %"],
        ["dog", "50", "%"],
        ["runs", "25", "%"],
    ]
    assert lines[-2:] == ["corrected: A _[blue]_ dog runs.", "score 0.875"]


def test_gains_have_no_column_of_other_words(told):
    lines = told(print_caption, card(GAINS))
    assert lines[2].split() == ["word", "gain", "without", "it"]
    assert [line.split() for line in lines[4:]] == [
        ["b", "−0.200"],
        ["c", "−0.300"],
        ["d", "−0.100"],
    ]


def test_the_most_suspicious_are_ranked_with_their_worst_word(told):
    lines = told(print_ranking, [card(place=1), card(GAINS, place=2)])
    assert lines[0].split() == ["image", "score", "doubt", "caption"]
    first, correction, second = lines[2:]
    assert " ".join(first.split()) == "1 [b]image 1 0.125 93 % A [red [93 %]] dog [50 %] runs."
    assert correction == "→ A _[blue]_ dog runs."
    assert second.split() == ["2", "[b]image", "2", "0.500", "−0.100", "b", "c", "d"]


def test_judged_captions_have_a_verdict(told):
    judged = replace(GAINS, verdict="does not fit", mistakes=0.25)
    lines = told(functools.partial(print_ranking, judged=True), [card(judged, place=1)])
    assert lines[0].split() == ["image", "score", "gain", "without", "it", "verdict", "caption"]
    assert lines[2].endswith("probably does not fit   b c d")


def test_a_caption_without_words_has_no_worst(told):
    lines = told(print_ranking, [card(Explanation("?!", 0.25, ()), place=1)])
    assert lines[2].split() == ["1", "[b]image", "1", "0.250", "?!"]
