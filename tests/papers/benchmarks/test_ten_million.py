"""The rehearsal of a million images runs small, and its page says what its JSON holds."""

from __future__ import annotations

import json

import pytest

from benchmarks import ten_million

ROWS = json.loads(ten_million.ROWS.read_text("utf-8"))


def test_the_page_has_the_tables_of_the_rows(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(ten_million.PAGE.read_text("utf-8"), "utf-8")
    ten_million.write_page(ROWS, page)
    assert page.read_text("utf-8") == ten_million.PAGE.read_text("utf-8")
    assert ROWS.keys() == ten_million.PARTS.keys()
    assert (ROWS["mine"]["images"], ROWS["mine"]["texts"]) == (10**6, 10**4)


def test_what_the_model_computes():
    assert ten_million.held_by_lists(10, 100, (5, 50)) == 8 * (10 * 69 + 100 * 114)
    # a fixed cost is no part of what grows
    assert ten_million.extrapolated((10, 7.0), (110, 57.0), 1010) == 2.0 + 0.5 * 1010
    one = {"processor_seconds": [3.0, 1.0], "images": 100, "texts": 20}
    assert ten_million.each(one) == 4 / 2000
    # 64 x 10 of 100 centres' products, 10,000 vectors and 50 queries meet 100 centres, each query
    # 32 cells of 100 vectors and 12 pairs
    wanted = 640 * 10_000 + 10_000 * 100 + 50 * (100 + 3_200 + 12)
    assert ten_million.ivf_operations(50, 10_000, 8, 3) == pytest.approx(2 * 8 * wanted)
    row = ROWS["mine a tenth by IVF"]
    again = ten_million.ivf_seconds(
        ROWS, row["images"], row["texts"], row["width"], (row["list"], row["list"])
    )
    assert 0 < again < sum(row["processor_seconds"])  # one process makes each index once
    assert 1e-11 < ten_million.h100_seconds() < 1e-9


@pytest.mark.slow
def test_the_rehearsal_runs(tmp_path):
    size = ["--images", "3000", "--texts", "200", "--width", "16"]
    assert not ten_million.main(["data", str(tmp_path), *size])
    rows = tmp_path / "rows.json"
    assert not ten_million.main(["rehearse", str(tmp_path), "--rows", str(rows)])
    found = json.loads(rows.read_text("utf-8"))
    assert found.keys() == ten_million.PARTS.keys()
    assert (found["mine"]["images"], found["mine a tenth"]["images"]) == (3000, 300)
    assert found["mine"]["disk_bytes"] > 6 * (3000 + 200) * ten_million.LISTS
    proposed = found["mine a tenth by IVF"]
    assert 0.5 < proposed["recall_images"] <= proposed["recall_texts"] + 0.5
    assert len(proposed["processor_seconds"]) == ten_million.PROCESSES
    assert found["index faiss-ivf-pq"]["query_seconds"] > 0
    assert ten_million.tables(found).count("\n") > 15
