"""Lists where truth is complete: the bed of scenes, lists of equal ranks, the run, its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.truths import exact, exact_page, page, world
from benchmarks.truths.arms import CCA, Cost
from benchmarks.truths.ledger import chosen, read_ledger
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import is_true
from counterfoil.evaluation.protocols import evaluate_protocol

DOCS = Path(__file__).parents[3] / "docs"
STUDIES = {name: replace(study, lists=(12, 6)) for name, study in exact.STUDIES.items()}
STUDY = STUDIES["exact"]


SMALL = {"WIDTH": 32, "RANDOM": 40, "WORDS": 60, "TOWER": 16, "INNER": 24, "EMBEDDING": 8}


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    """A small world, with narrow vectors and lists."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(world, name, value)
        patch.setattr(world.World, "adapters", {"width": 32, "hidden": 16, "dropout": 0.1})
        folder = tmp_path_factory.mktemp("world") / "made"
        data = load_dataset("scenes:images=330,dev=40,test=40,features=regions")
        world.write_world(data, folder)
        yield world.World(folder)
    exact.first_round.cache_clear()


def test_the_bed_knows_what_is_true(bed):
    train = bed.train
    scenes = graphs(train)
    assert bed.true.shape == (250, 1250)
    for image, text in ((0, 0), (0, 7), (3, 15), (100, 1000), (249, 5), (20, 1245)):
        assert bool(bed.true[image, text]) == is_true(train.texts[text], scenes[image])
    assert bool(bed.true[train.text_to_image, torch.arange(1250)].all())
    assert bed.true.float().mean() > 1 / 250


def test_the_nearest_false_item():
    true = torch.rand(40, 17, generator=torch.Generator().manual_seed(0)) < 0.6
    listed = torch.arange(17) < torch.randint(2, 18, (40, 1))
    true[3] = True
    found = exact.nearest_false(true, listed)
    for query in range(40):
        wrong = [at for at in range(17) if listed[query, at] and not true[query, at]]
        for place in range(17):
            best = min(wrong, key=lambda at: (abs(at - place), at), default=-1)
            assert found[query, place] == best


def test_lists_of_equal_ranks(bed):
    mining = exact.first_round(STUDY, bed, 5)
    mined, false = mining.lists[exact.MINED], mining.lists[exact.FALSE]
    owner = bed.train.text_to_image
    for rows, others, true in (
        (mined.texts, false.texts, bed.true),
        (mined.images, false.images, bed.true.T),
    ):
        assert rows.shape == others.shape
        was_true = true.gather(1, rows.long())
        assert 0 < was_true.float().mean() < 0.9
        assert torch.equal(rows[~was_true], others[~was_true])
        kept = others >= 0
        assert not bool(true.gather(1, others.clamp(min=0).long())[kept].any())
    assert not bool((owner[mined.texts.long()] == torch.arange(250).unsqueeze(1)).any())
    facts = mining.facts
    assert facts[exact.FALSE]["texts true"] == facts[exact.FALSE]["images true"] == 0
    assert facts[exact.MINED]["texts true"] > 0
    assert facts[exact.MINED]["texts rank"] == pytest.approx(6.5, abs=0.3)  # of 1 to 12; ties
    assert facts[exact.FALSE]["texts rank"] < 6.5 + 6
    assert facts[exact.FILTERED]["texts true"] < facts[exact.MINED]["texts true"]


@pytest.fixture(scope="module")
def regions(bed):
    """The same world for towers."""
    return world.RegionWorld(bed.folder)


def test_regions_and_words_of_the_same_scenes(bed, regions):
    scenes = load_dataset("scenes:images=330,dev=40,test=40,features=regions")
    for split in ("train", "dev", "test"):
        stored, own, plain = scenes.split(split), regions.data.split(split), bed.data.split(split)
        assert own.image_ids == stored.image_ids == plain.image_ids
        assert [*own.texts] == [" ".join(text.split()) for text in stored.texts]
        rows = torch.arange(len(own))
        found, expected = own.features.take(rows), stored.features.take(rows)
        assert torch.equal(found.mask, expected.mask)
        assert torch.equal(found.values, expected.values)
    assert regions.data.text_features is None
    assert torch.equal(regions.true, bed.true)


@pytest.mark.parametrize(("study", "name"), [(s, n) for s in STUDIES for n in STUDIES[s].arms])
def test_an_arm(bed, regions, study, name):
    study = STUDIES[study]
    on = regions if study.bed is world.RegionWorld else bed
    arm, cost = study.arms[name], Cost()
    model = arm.train(study, on, arm.grid[1], 5, cost)
    assert len(arm.grid) == len(study.arms[exact.BASE].grid)
    first = 0 if arm.kind is None else study.first
    assert cost.pairs == 1250 * (first + arm.epochs * (1 + arm.drawn))
    assert cost.steps == -(-1250 // study.batch) * (first + arm.epochs)
    again = exact.first_round(study, on, 5).model.embed(on.splits["dev"])
    assert (model.embed(on.splits["dev"]).images.tokens != again.images.tokens).any()


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_mined_lists_cost_as_much_as_plain_batches(study):
    arms = study.arms
    cost = {kind: study.first + arms[kind].epochs * (1 + arms[kind].drawn) for kind in exact.KINDS}
    assert {*cost.values()} == {arms[exact.BASE].epochs}


def test_measured_by_both_truths(bed):
    model = exact.first_round(STUDY, bed, 5).model
    points = bed.measure(model)
    report = evaluate_protocol([model.embed(bed.splits["test"])], bed.splits["test"])
    sums = [points[f"test {side} RSum"] for side in ("i2t", "t2i")]
    assert sum((s[:, 0].sum() / s[:, 1].sum()).item() for s in sums) == pytest.approx(
        report.rsum, abs=1e-3
    )
    for side in ("i2t", "t2i"):
        own, every = (points[f"{name} {side} RSum"][:, 0].sum() for name in ("dev", "dev true"))
        assert every > own
        assert points[f"dev true {side} mAP@R"][:, 1].sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_explored_declared_confirmed(bed, tmp_path, study):
    few = {
        name: replace(study.arms[name], grid=study.arms[name].grid[:2])
        for name in (exact.BASE, exact.FALSE)
    }
    study = replace(study, arms=few, seeds=range(2, 4))
    published = exact_page.PUBLISHED[study.name]
    claims = [{"claim": "one"}]
    assert not exact.run(study, bed.folder, tmp_path, claims, None, explored=True)
    assert [line["phase"] for line in read_ledger(tmp_path)] == ["explore"] * 8
    assert not (tmp_path / "declared.json").exists()
    assert exact.run(study, bed.folder, tmp_path, claims, None, explored=False)
    lines = read_ledger(tmp_path)
    assert [line["arm"] for line in lines[8:]] == [CCA, *few, *few]
    points = json.loads((tmp_path / "declared.json").read_text())["points"]
    assert all(line["point"] == points[line["arm"]] for line in lines[9:])
    assert exact.read_facts(tmp_path).keys() == {"0", "1", "2", "3"}
    for name in ("results", "evidence", "images"):
        (tmp_path / name).mkdir()
    place = tmp_path / published.page
    place.write_text(f"# Lists\n\n{published.start}old\n{page.END}\n\nmore\n")
    found = exact_page.summary(study, tmp_path, lines)
    exact_page.write_pages(study, tmp_path, found, lines)
    shown = exact_page.table(json.loads((tmp_path / published.summary).read_text()))
    assert place.read_text() == f"# Lists\n\n{published.start}{shown}\n{page.END}\n\nmore\n"
    assert "**Not run yet**: Exactly false lists instead of mined ones give a lower RSum." in shown
    claim = "Exactly false lists help InfoNCE at equal cost, by mAP@R."
    (verdict,) = (line for line in shown.splitlines() if claim in line)
    assert verdict.endswith("exactly false, same ranks against InfoNCE, 2 seeds.")
    assert exact.FALSE in (tmp_path / published.figure).read_text()


@pytest.mark.parametrize(
    ("spans", "more", "less"),
    [
        (((1, 0.5, 2), (1, 0.1, 2)), "Confirmed", "Refuted, the opposite holds"),
        (((1, 0.5, 2), (1, -0.1, 2)), "Open", "Open"),
        (((-1, -2, -0.5), (-1, -2, -0.1)), "Refuted, the opposite holds", "Confirmed"),
        (((1, 0.5, 2), (-1, -2, -0.5)), "Open", "Open"),
    ],
)
def test_verdicts_need_dev_and_test(spans, more, less):
    claim = exact_page.Claim("", "a", "b", "RSum")
    assert claim.state(spans) == more
    assert replace(claim, sign="less").state(spans) == less


def test_claims_are_of_arms():
    for study, claims in exact_page.CLAIMS.items():
        for claim in claims:
            assert {claim.arm, claim.base} <= {*exact.STUDIES[study].arms}
            assert claim.measure in exact_page.COLUMNS


def test_what_was_declared_is_what_was_judged():
    """Written and kept before the confirming seeds were trained."""
    declared = json.loads((DOCS / "evidence/exact-lists-towers.declared.json").read_text("utf-8"))
    study = exact.TOWERS
    assert declared["contrasts"] == [claim.to_dict() for claim in exact_page.CLAIMS[study.name]]
    assert declared["seeds"] == [*study.seeds]
    assert declared["points"].keys() == study.arms.keys()
    assert all(declared["points"][name] in [*arm.grid] for name, arm in study.arms.items())


SHORT = {CCA: 1}  # seeds, where a row has not all


@pytest.mark.parametrize("study", exact.STUDIES.values(), ids=exact.STUDIES)
def test_the_page_shows_its_ledger(study):
    """The table is that of the summary, whose numbers are those of the trainings."""
    published = exact_page.PUBLISHED[study.name]
    found = json.loads((DOCS / published.summary).read_text("utf-8"))
    shown = published.shown((DOCS / published.page).read_text("utf-8"))[1]
    assert shown.strip() == exact_page.table(found)
    lines = [
        json.loads(line) for line in (DOCS / published.trainings).read_text("utf-8").splitlines()
    ]
    by_arm = {}
    for line in lines:
        if line["phase"] == "confirm":
            by_arm.setdefault(line["arm"], {})[line["seed"]] = line["numbers"]
    assert by_arm.keys() == {arm["arm"] for arm in found["arms"]} == {CCA, *study.arms}

    def mean(arm, measure, seeds):
        column, weight = exact_page.MEASURES[measure]
        return sum(
            weight * by_arm[arm][seed][column.format(side)] / len(seeds)
            for seed in seeds
            for side in ("i2t", "t2i")
        )

    for arm in found["arms"]:
        name = arm["arm"]
        seeds = [*by_arm[name]]
        assert seeds == [*study.seeds][: SHORT.get(name)]
        assert arm["seeds"] == len(seeds)
        for measure in exact_page.MEASURES:
            own = mean(name, measure, seeds)
            assert arm["means"][measure] == pytest.approx(own, abs=1e-3)
            if "differences" in arm:
                change, low, high = arm["differences"][measure]
                base = mean(exact.BASE, measure, seeds)
                assert change == pytest.approx(own - base, abs=2e-3)
                assert low <= change <= high
    for claim, declared in zip(found["claims"], exact_page.CLAIMS[study.name], strict=True):
        assert declared.to_dict().items() <= claim.items()
        seeds = [*by_arm[declared.arm]]
        for split, (change, low, high) in zip(("dev", "test"), claim["found"], strict=True):
            measure = f"{split} {declared.measure}"
            expected = mean(declared.arm, measure, seeds) - mean(declared.base, measure, seeds)
            assert change == pytest.approx(expected, abs=2e-3)
            assert low <= change <= high
        whole = declared.state(claim["found"])
        few = f"Open, {len(seeds)} of {len(study.seeds)} seeds"
        assert claim["state"] == (whole if len(seeds) == len(study.seeds) else few)
    tried = [line for line in lines if line["phase"] == "explore"]
    assert len(tried) == 2 * sum(len(arm.grid) for arm in study.arms.values())
    best = chosen(tried)
    assert {arm["arm"]: arm["point"] for arm in found["arms"][1:]} == best
