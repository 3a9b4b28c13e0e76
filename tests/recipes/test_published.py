"""The papers' tables in tests/data/published.json: sources, and sums as the papers print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "published.json").read_text("utf-8"))
ROWS = [
    row
    for tables in PUBLISHED.values()
    for table in tables.values()
    if isinstance(table, list)
    for row in table
]


def rsum(row: dict[str, Any]) -> float:
    return sum(row["i2t"]) + sum(row["t2i"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['method']}, {row['source']}")
def test_a_row_is_complete(row: dict[str, Any]) -> None:
    assert any(kind in row["source"] for kind in ("Table", "issue", "README"))
    assert row["models"] in (1, 2)
    assert row["dataset"] in ("flickr30k-1k", "coco-1k", "coco-5k")
    for recalls in (row["i2t"], row["t2i"]):
        assert 0 < recalls[0] < recalls[1] < recalls[2] < 100


def test_every_row_is_there() -> None:
    assert len(ROWS) == 27 + 50 + 36 + 20 + 32 + 25


AOQ_1 = [508.5, 510.2, 511.2, 513.4, 514.7, 517.2, 518.6, 519.7, 521.4, 413.3, 422.9, 423.8]
NDGL_1 = [
    *(523.5, 525.9, 524.1, 526.5, 525.3, 532.7, 526.8, 531.2),  # MS-COCO
    *(528.2, 531.4, 530.0, 533.0, 531.3, 538.3, 544.8, 547.7),
    *(496.3, 509.4, 512.9, 519.2, 505.3, 524.2, 513.8, 523.3),  # Flickr30K
    *(520.1, 526.8, 517.4, 524.9, 519.3, 533.8, 550.4, 552.3),
]
NDGL_2 = [
    *(520.7, 527.2, 524.6, 522.8, 525.3, 528.8, 525.7, 532.7, 523.6, 530.7, 530.5, 529.1),  # COCO
    *(528.9, 534.0, 538.2, 538.3, 547.5, 547.7),
    *(504.1, 513.2, 500.8, 506.8, 514.7, 517.0, 508.3, 524.2, 508.9, 520.4, 519.9, 521.5),
    *(523.8, 517.0, 529.4, 533.8, 551.9, 552.3),  # Flickr30K
]
TAGS_1 = [
    *(410.9, 416.4, 423.8, 402.5, 450.2, 462.2, 460.9, 467.4, 400.4, 469.5, 468.9, 472.9),
    *(465.0, 487.4, 486.3, 513.9, 538.8, 544.7, 548.4, 542.7, 549.4, 540.6, 550.6, 554.4),
    *(551.0, 557.4),
]
READMES = [
    *(491.5, 501.3, 518.2, 524.0, 507.6, 513.2, 521.2, 527.2),  # NAAF
    *(492.1, 519.5, 421.3, 490.9, 518.9, 421.5, 500.8, 523.8, 429.7),  # SAF, SGR, SGRAF
    *(528.2, 535.4),  # X-Dim
    *(535.9, 441.0, 473.2),  # LightningDOT
    *(546.6, 549.9, 554.5),  # ERNIE-ViL
]


@pytest.mark.parametrize(
    ("paper", "table", "printed", "within"),
    [
        ("aoq", "table_1", AOQ_1, 0.15),  # the paper adds before it rounds
        ("aoq", "table_2", [473.2, 486.7, 486.3], 0.15),
        ("ndgl", "table_1", NDGL_1, 0.25),
        ("ndgl", "table_2", NDGL_2, 0.25),
        ("ndgl", "table_3", [528.6, 533.8, 534.3, 534.6, 535.3], 0.25),
        ("ndgl", "table_4", [519.3, 532.2, 533.8, 529.7], 0.25),
        (
            "ndgl",
            "table_5",
            [513.5, 517.2, 520.3, 523.3, 482.6, 486.3, 487.8, 488.0, 494.1],
            0.25,
        ),
        ("tags", "table_1", TAGS_1, 0.25),
        ("tags", "table_2", [463.4, 462.1, 465.2, 545.9, 543.7, 547.8], 0.25),
        ("compared", "readme", READMES, 0.15),
    ],
)
def test_sums_are_those_printed(
    paper: str, table: str, printed: list[float], within: float
) -> None:
    assert [rsum(row) for row in PUBLISHED[paper][table]] == pytest.approx(printed, abs=within)


def row_of(method: str, dataset: str, source: str) -> dict[str, Any]:
    (row,) = (
        row
        for row in ROWS
        if (row["method"], row["dataset"], row["source"]) == (method, dataset, source)
    )
    return row


def recalls(row: dict[str, Any]) -> list[float]:
    return [*row["i2t"], *row["t2i"]]


def test_rows_that_are_not_what_they_seem_are_marked() -> None:
    """Each mark is a sentence about rows of this file, and is checked beside them."""
    marked = {(row["method"], row["dataset"]) for row in ROWS if row.get("note")}
    dot = {
        (f"LightningDOT ({size})", like) for size in "BL" for like in ("coco-5k", "flickr30k-1k")
    }
    f30k = "flickr30k-1k"
    assert marked == dot | {("ERNIE-ViL (B)", f30k), ("X-Dim (BERT)", f30k)}
    for method, like in dot:
        row = row_of(method, like, "TAGS-DC, Table 1")
        low, high = (int(word) for word in row["note"].split() if word.isdigit())
        above = rsum(row) - rsum(row_of("LightningDOT", like, "LightningDOT, README"))
        assert low - 0.5 < above < high + 0.5
        ranker = row_of(method.replace("LightningDOT", "UNITER"), like, "TAGS-DC, Table 1")
        assert rsum(row) == pytest.approx(rsum(ranker), abs=2.1)
    table = row_of("ERNIE-ViL (B)", f30k, "TAGS-DC, Table 1")
    base, large = (row_of(f"ERNIE-ViL ({s})", f30k, "ERNIE-ViL, README") for s in "BL")
    theirs = recalls(base)[:2] + recalls(large)[2:]
    assert recalls(table) == pytest.approx(theirs, abs=0.06)
    bert, gru = (row_of(f"X-Dim ({text})", f30k, "NDGL, Table 2") for text in ("BERT", "BiGRU"))
    assert recalls(bert) == recalls(gru) != recalls(row_of("X-Dim (BERT)", f30k, "X-Dim, README"))


def test_ensembles_of_ndgl_lie_between_model_and_student() -> None:
    tables = PUBLISHED["ndgl"]
    single = {
        row["method"]: rsum(row) for row in tables["table_1"] if row["dataset"] == "flickr30k-1k"
    }
    for model, (alone, together, student) in tables["ensembles"].items():
        assert alone < together < student
        assert single[f"{model} (BERT)"] == pytest.approx(alone, abs=0.25)
        assert single[f"{model} (BERT) + NDGL"] == pytest.approx(student, abs=0.25)


def test_batch_sizes_of_ndgl_are_those_of_the_table_at_the_papers_own() -> None:
    """Figure 4: R@1, R@5 and R@10 added up, from image to text and from text to image."""
    batches = PUBLISHED["ndgl"]["batches"]
    assert list(batches) == ["32", "64", "128", "256", "512"]
    rows = {
        row["method"]: [sum(row["i2t"]), sum(row["t2i"])]
        for row in PUBLISHED["ndgl"]["table_1"]
        if row["dataset"] == "flickr30k-1k"
    }
    for name, values in zip(("CHAN (BERT)", "CHAN (BERT) + NDGL"), batches["128"], strict=True):
        assert values == pytest.approx(rows[name], abs=0.1)
    for alone, student in batches.values():
        assert sum(student) > sum(alone)


def test_discrimination_of_tags() -> None:
    table = PUBLISHED["tags"]["table_4"]
    assert list(table) == ["TAGS1", "TAGS2", "VSE-C"]
    assert all(row["TAGS1"] > row["UNITER"] for row in table.values())
