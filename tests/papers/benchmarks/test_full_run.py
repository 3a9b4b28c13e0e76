"""The rehearsal of full runs: it runs on little data, and its page says what its JSON holds."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import full_run

ROWS = json.loads(full_run.ROWS.read_text("utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("full")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(full_run, "FEATURES", 16)
        full_run.write_data(place / "data", {"train": 30, "dev": 8, "test": 8})
    full_run.write_berts(place, hidden_size=16, intermediate_size=16, num_attention_heads=2)
    return place


def test_the_page_has_the_tables_of_the_rows(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(full_run.PAGE.read_text("utf-8"), "utf-8")
    full_run.write_page(ROWS, page)
    assert page.read_text("utf-8") == full_run.PAGE.read_text("utf-8")
    assert full_run.PARTS.keys() == ROWS.keys()


def test_a_page_without_a_place_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Nothing\n", "utf-8")
    with pytest.raises(ValueError, match="has no place <!-- full run -->"):
        full_run.write_page(ROWS, page)


def test_operations_are_those_of_torchs_own_counter():
    layer, seen = torch.nn.TransformerEncoderLayer(32, 4, 64), torch.randn(5, 7, 32)

    @torch.inference_mode()
    def encode():
        torch.nn.functional.linear(layer.eval()(seen), seen[0, 0].expand(9, -1))

    for run in (lambda: layer.train()(seen).sum().backward(), encode):
        with FlopCounterMode(display=False) as theirs:
            run()
        with full_run.Operations() as ours:
            run()
        assert ours.count == theirs.get_total_flops() > 0


@pytest.mark.slow
def test_a_recipe_is_rehearsed(folder):
    assert full_run.read_all(folder)["texts"] == 230
    run = full_run._aoq(folder)
    row = run.train("online", 2, batch=4)
    assert row["whole_steps"] == 60  # 30 epochs of two batches
    assert row["step_flops"] > 0
    assert row["step_seconds"] > 0
    assert 0 < run.test("online", 4)["flops"] < run.test("online")["flops"]
    assert run.mine("online", 12)["longest"] == 62  # one caption has 82 words
    run.some_lists()
    assert run.train("adaptive", 1, batch=4)["step_flops"] > row["step_flops"]


@pytest.mark.slow
def test_a_student_reads_what_teachers_of_bert_encode(folder):
    row = full_run._student(folder, 2, images=30, batch=4)
    assert row["taught"]["images"] == 30
    assert row["taught"]["stored_bytes"] > 2 * 30 * full_run.REGIONS * 1024 * 2  # two teachers
    assert row["steps"] == 2
    assert row["step_flops"] > 0


def test_hours_grow_with_steps_and_shrink_with_precision():
    for recipe in full_run.TRAININGS:
        small, large = (full_run.totals(ROWS, recipe, like) for like in ("flickr30k", "coco"))
        for hours in (small, large):
            assert hours["H100 bf16"] <= hours["H100 fp32"] < hours["A100 fp32"]
        assert small["H100 fp32"] < large["H100 fp32"]


def test_what_was_left_out_is_added():
    rows = {name: dict(row) for name, row in ROWS.items()}
    pair = full_run.scoring(rows, "tags-dc")[1]
    row = rows["tags 1"]
    whole = full_run.step_flops(rows, "tags 1")
    left_out = 399 + 399 + 400 - 3 * full_run.SCORED
    wanted = (row["step_flops"] / row["batch"] + left_out * pair) * row["whole_batch"]
    assert whole == pytest.approx(wanted)
