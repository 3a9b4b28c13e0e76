"""VSE-C's attack: ranks among all captions and the foils of an image's own captions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import evaluation_cases
from counterfoil.core.types import Pairs
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.foils.attack import ALL, MEASURES, CaptionAttack, evaluate_attack
from counterfoil.evaluation.metrics import Protocol, recall_from_ranks
from counterfoil.evaluation.protocols import evaluate_protocol
from recipes_cases import pixel_model, run

IMAGES = 24
KINDS = ("noun", "numeral", "relation")


def dataset(extra: int = 0) -> ImageTextDataset:
    """Images with 0 to 4 captions, texts of no image, and some extra positives."""
    owner = evaluation_cases.ragged(IMAGES, seed=3, orphans=3)
    rng = torch.Generator().manual_seed(2)
    more = Pairs(
        torch.randint(IMAGES, (extra,), generator=rng),
        torch.randint(len(owner), (extra,), generator=rng),
    )
    return evaluation_cases.unnamed(
        owner, IMAGES, name="made", extra_positives=more if extra else None
    )


@pytest.mark.parametrize("extra", [0, 40])
@pytest.mark.parametrize("folds", [1, 3])
def test_ranks_by_a_slow_loop_with_ties(folds: int, extra: int) -> None:
    made = dataset(extra)
    owner = made.text_to_image.tolist()
    foils = [
        (f"t{row}", KINDS[(row + n) % 3], f"foil {row} {n}")
        for row in range(len(owner))
        for n in range(row % 4)
    ]
    attack = CaptionAttack.of(made, foils)
    foils = [foil for foil in foils if owner[int(foil[0][1:])] >= 0]
    assert attack.dataset.texts[len(owner) :] == [text for _, _, text in foils]
    found = evaluation_cases.scores(IMAGES, attack.dataset.text_to_image, seed=5, levels=1)
    found += 2 * (attack.dataset.text_to_image == torch.arange(IMAGES).unsqueeze(1))
    found[:, len(owner) :] += 2  # about as high as the true captions, and many as high
    member = evaluation_cases.member(found)
    before = evaluate_protocol(attack.captions_only([member]), made, Protocol("p", folds=folds))
    report = evaluate_attack([member], attack, before)
    fold_of = before.ranked[0].folds.tolist()
    true = {image: {t for t, o in enumerate(owner) if o == image} for image in range(IMAGES)}
    described = {image for image in range(IMAGES) if true[image]}
    if made.extra_positives is not None:
        more = made.extra_positives
        for image, text in zip(more.image.tolist(), more.text.tolist()):
            if image in described and owner[text] >= 0 and fold_of[image] == fold_of[owner[text]]:
                true[image].add(text)
    tied = 0
    for kind in (*KINDS, ALL):
        ranks = []
        for image in range(IMAGES):
            rank = int(before.ranked[0].ranks[image])
            if true[image]:
                best = max(float(found[image, text]) for text in true[image])
                for place, (caption, own, _) in enumerate(foils):
                    if owner[int(caption[1:])] == image and kind in (own, ALL):
                        score = float(found[image, len(owner) + place])
                        rank += score >= best
                        tied += score == best
            ranks.append(rank)
        after = report.after[kind]
        assert after.ranked[0].ranks.tolist() == ranks
        assert torch.equal(after.ranked[1].ranks, before.ranked[1].ranks)
        if folds == 1:
            assert after.i2t == recall_from_ranks(torch.tensor(ranks), "i2t")
        assert after.t2i == before.t2i
        assert report.foils[kind] == sum(kind in (own, ALL) for _, own, _ in foils)
    assert tied > 5
    assert report.after[ALL].i2t.mean_rank > report.after["noun"].i2t.mean_rank
    plain = report.to_dict()
    spans = plain["after"][ALL]["intervals"]
    assert list(spans) == list(MEASURES)
    assert spans["i2t mean rank"]["low"] <= report.after[ALL].i2t.mean_rank
    assert plain["after"][ALL]["differences"][0]["difference"] <= 0
    assert len(report.table().rows) == 5


def test_what_is_no_attack() -> None:
    made = dataset()
    with pytest.raises(ValueError, match="no foil of made"):
        CaptionAttack.of(made, [])
    with pytest.raises(ValueError, match=r"a foil is of caption 'x', which made .* does not have"):
        CaptionAttack.of(made, [("x", "noun", "a foil")])


def test_on_scenes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, foils = pixel_model(tmp_path / "model"), tmp_path / "foils"
    data = "scenes:images=36"
    assert (
        run(
            "papers",
            "write",
            "rules",
            data,
            "--split",
            "test",
            "--output",
            foils,
            "--set",
            "most=2",
        )
        == 0
    )
    plain = []
    for number, more in enumerate([(), ("--foils", foils)]):
        out = tmp_path / f"{number}.json"
        capsys.readouterr()
        assert run("evaluate", model, "--data", data, "--json", out, *more) == 0
        plain.append(json.loads(out.read_text()))
    shown = " ".join(capsys.readouterr().out.split())
    assert "under attack" in shown
    without, attacked = plain
    report = attacked.pop("foils")
    assert attacked == without, "the plain numbers are the same"
    assert report["before"]["i2t"] == without["i2t"]
    assert set(report["after"]) == {*KINDS, ALL}
    for one in report["after"].values():
        assert one["foils"] > 0
        assert one["i2t"]["mean_rank"] >= without["i2t"]["mean_rank"]
    assert report["after"][ALL]["i2t"]["mean_rank"] > without["i2t"]["mean_rank"]


def test_foils_of_another_split_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, foils = pixel_model(tmp_path / "model"), tmp_path / "foils"
    data = "scenes:images=36"
    assert (
        run(
            "papers", "write", "rules", data, "--split", "dev", "--output", foils, "--set", "most=1"
        )
        == 0
    )
    capsys.readouterr()
    assert run("evaluate", model, "--data", data, "--foils", foils) == 2
    assert "was written for corpus" in capsys.readouterr().err
    assert run("evaluate", model, "--data", data, "--foils", foils, "--first", model) == 2
    assert "--foils need all scores" in " ".join(capsys.readouterr().err.split())
