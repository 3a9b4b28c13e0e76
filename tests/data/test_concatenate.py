"""Several data sets that are one: ids, batches, weights, dev set by set, a stopped training."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import counterfoil as cf
from counterfoil.core.config import config, lazy
from counterfoil.core.resumable import WorkStopped
from counterfoil.core.types import Pairs
from counterfoil.data.batching import ExtraPositivePartition
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.scenes import scenes
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.model import Model
from counterfoil.models.layers.towers import GRU, PatchTower
from counterfoil.models.vsepp import VSEPP
from counterfoil.training.callbacks import Callback
from counterfoil.training.config import TrainConfig
from counterfoil.training.trainer import Trainer, TrainingLoop, sampler_of
from several_cases import write_coco, write_table


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    coco, mine = write_coco(folder / "coco"), write_table(folder / "table")
    return {"coco": cf.load_dataset(coco), "mine": cf.load_dataset(mine)}


@pytest.fixture(scope="module")
def both(sets):
    return cf.concatenate_datasets(sets)


def small_model(data: ImageTextDataset) -> Model:
    processor = ProcessorConfig(images="pixels", size=32).fit(data)
    assert processor.tokenizer is not None
    torch.manual_seed(0)
    image = lazy(PatchTower, size=32, patch=16, width=8, channels=8, depth=0)
    spec = config(VSEPP, image=image, text=lazy(GRU, words=processor.tokenizer.size, width=8))
    return Model(spec.build(), processor, "small", spec)


def epoch_of(data: ImageTextDataset, number: int = 0, **settings: Any) -> list[list[str]]:
    """The names of the sets of each anchor, batch by batch."""
    train = data["train"]
    names, owners = train.columns["dataset"], train.text_to_image
    sampler = sampler_of(TrainConfig(**{"batch": 8, **settings}), train)
    batches = [[str(names[row]) for row in owners[texts]] for texts in sampler.epoch(number)]
    assert len(batches) == len(sampler)
    return batches


def test_ids_captions_and_splits(sets, both):
    coco, mine = sets.values()
    assert set(coco.image_ids) & set(mine.image_ids)  # which collide
    assert len(set(both.image_ids)) == len(coco) + len(mine) == len(both)
    assert len(set(both.text_ids)) == len(both.texts)
    assert both.name == "coco + mine"
    assert both.image_ids[len(coco)] == f"mine/{mine.image_ids[0]}"
    assert both.columns["album"] == [None] * len(coco) + ["holiday"] * len(mine)
    assert both.columns["dataset"] == ["coco"] * len(coco) + ["mine"] * len(mine)
    for split, parts in (("train", ["coco", "mine"]), ("dev", ["coco"]), ("test", ["mine"])):
        found = both[split].separate()
        assert list(found) == parts == list(both[split].parts)
        for name, one in found.items():
            alone = sets[name][split]
            assert [each.removeprefix(f"{name}/") for each in one.image_ids] == alone.image_ids
            assert one.texts == alone.texts
            assert torch.equal(one.text_to_image, alone.text_to_image)
            assert (one.name, one.split_name, one.separate()) == (name, split, {})
    row = len(coco) + 3
    assert both.pictures.open(row).tobytes() == mine.pictures.open(3).tobytes()
    assert coco.separate() == {}


def test_pictures_of_several_kinds(sets):
    drawn = scenes(images=6, dev=2, test=2)
    mixed = cf.concatenate_datasets({"mine": sets["mine"], "scenes": drawn})
    for name, place in (("mine", 2), ("scenes", 5)):
        own = {"mine": sets["mine"], "scenes": drawn}[name].pictures
        row = place + (len(sets["mine"]) if name == "scenes" else 0)
        for method in ("place", "fingerprint", "stored", "byte_count"):
            assert getattr(mixed.pictures, method)(row) == getattr(own, method)(place)
        assert mixed.pictures.open(row).tobytes() == own.open(place).tobytes()
    assert mixed["test"].pictures.place(-1) == drawn["test"].pictures.place(-1)


def test_judged_pairs_and_texts_of_no_image(sets):
    coco, mine = sets.values()
    one = Pairs(torch.tensor([1]), torch.tensor([0]))
    judged = replace(coco, extra_positives=one, ambiguous=one)
    weighted = replace(mine, extra_positives=one, extra_weights=torch.tensor([0.5]))
    owners = weighted.text_to_image.clone()
    owners[-1] = -1
    made = cf.concatenate_datasets({"a": judged, "b": replace(weighted, text_to_image=owners)})
    assert made.extra_positives.image.tolist() == [1, len(coco) + 1]
    assert made.extra_positives.text.tolist() == [0, len(coco.texts)]
    assert made.extra_weights.tolist() == [1.0, 0.5]
    assert made.ambiguous.image.tolist() == [1]
    assert made.text_to_image[-1] == -1
    assert made.text_to_image[-2] == len(coco) + owners[-2]


@pytest.mark.parametrize(
    ("weights", "refusal"),
    [
        ({"mine": 0}, "the weight of mine is 0; give a number above 0"),
        ({"mine": -1.5}, "the weight of mine is -1.5"),
        ({"mine": math.nan}, "the weight of mine is nan"),
        ({"mine": math.inf}, "the weight of mine is inf"),
        ({"mine": "2"}, "the weight of mine is '2'"),
        ({"mime": 2}, "'mime' is not one of these data sets; did you mean 'mine'"),
    ],
)
def test_weights_that_are_refused(sets, weights, refusal):
    with pytest.raises(ValueError, match=refusal):
        cf.concatenate_datasets(sets, weights=weights)


def test_sets_that_are_refused(sets, both):
    mine = sets["mine"]
    refused = {
        "a and b are the same data; give them once": {"a": mine, "b": mine},
        "'my/photos' is no name of a data set; give one without a /": {
            "coco": sets["coco"],
            "my/photos": mine,
        },
        "both has a column 'dataset'": {"both": both, "mine": mine},
        "mine has no pictures": {"coco": sets["coco"], "mine": replace(mine, pictures=None)},
        "all with one kind of `positives`": {
            "coco": sets["coco"],
            "mine": mine.with_positives("id"),
        },
        "give at least one data set": {},
    }
    for refusal, given in refused.items():
        with pytest.raises(ValueError, match=refusal):
            cf.concatenate_datasets(given)
    with pytest.raises(ValueError, match="'' is no name of a data set"):
        cf.concatenate_datasets({"": sets["coco"]})
    with pytest.raises(TypeError, match="give data sets by name"):
        cf.concatenate_datasets({1: sets["coco"]})
    with pytest.raises(TypeError, match="give weights by name"):
        cf.concatenate_datasets(sets, weights=[1, 2])
    with pytest.raises(TypeError, match="give data sets by name"):
        cf.concatenate_datasets([mine])
    with pytest.raises(TypeError, match="'mine' is a name"):
        cf.concatenate_datasets({"mine": "mine"})


@pytest.mark.parametrize("settings", [{}, {"one_caption": True}, {"all_captions": True}])
def test_batches_of_one_set_each(both, settings):
    batches = epoch_of(both, homogeneous_batches=True, **settings)
    assert all(len(set(batch)) == 1 for batch in batches)
    drawn = Counter(name for batch in batches for name in batch)
    per_image = {"one_caption": (1, 1)}.get(next(iter(settings), ""), (3, 2))
    assert drawn == {"coco": 40 * per_image[0], "mine": 14 * per_image[1]}
    order = [batch[0] for batch in batches]
    assert order != sorted(order)  # not one set after the other
    assert order != [batch[0] for batch in epoch_of(both, 1, homogeneous_batches=True, **settings)]


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("weight", [0.25, 0.5, 2, 3.5])
def test_a_weight_is_respected(sets, homogeneous, weight):
    data = cf.concatenate_datasets(sets, weights={"mine": weight})
    settings = {"homogeneous_batches": homogeneous}
    for number in (0, 1):
        batches = epoch_of(data, number, **settings)
        drawn = Counter(name for batch in batches for name in batch)
        assert drawn == {"coco": 120, "mine": round(28 * weight)}
        if homogeneous:
            assert all(len(set(batch)) == 1 for batch in batches)
        else:  # each batch has nearly the share of each
            share = 28 * weight / (120 + 28 * weight)
            for batch in batches[:-1]:
                assert abs(batch.count("mine") - share * len(batch)) <= 2
    train = data["train"]
    sampler = sampler_of(TrainConfig(batch=8, **settings), train)
    rows = [torch.cat(list(sampler.epoch(number))) for number in (0, 1, 0)]
    assert torch.equal(rows[0], rows[2])
    times = rows[0].bincount(minlength=len(train.texts))
    mine = train.text_to_image >= int(train.parts["mine"][0])
    assert set(times[mine].tolist()) <= {math.floor(weight), math.ceil(weight)}
    assert set(times[~mine].tolist()) == {1}
    assert not torch.equal(rows[0].sort().values, rows[1].sort().values) or weight == 2  # anew


def test_without_weights_nothing_changes(both):
    train = both["train"]
    plain = sampler_of(TrainConfig(batch=8), replace(train, datasets={}))
    ours = sampler_of(TrainConfig(batch=8), train)
    for one, other in zip(plain.epoch(3), ours.epoch(3), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("homogeneous", [False, True])
def test_an_epoch_that_is_continued(sets, homogeneous):
    data = cf.concatenate_datasets(sets, weights={"mine": 1.5})["train"]
    plan = TrainConfig(batch=8, homogeneous_batches=homogeneous, drop_last=True)
    whole = list(sampler_of(plan, data).epoch(2))
    assert {len(rows) for rows in whole} == {8}
    for start in range(len(whole) + 1):
        rest = list(sampler_of(plan, data).epoch(2, start=start))
        assert [rows.tolist() for rows in rest] == [rows.tolist() for rows in whole[start:]]


def test_splits_of_two_names_are_one(sets):
    named = ["val" if split == "dev" else split for split in sets["coco"].splits]
    other = ["dev" if split == "test" else split for split in sets["mine"].splits]
    changed = {"coco": named, "mine": other}
    data = cf.concatenate_datasets(
        {name: replace(sets[name], splits=splits) for name, splits in changed.items()}
    )
    assert len(data["dev"]) == len(data["val"]) == len(sets["coco"]["dev"]) + other.count("dev")


@pytest.mark.parametrize("changes", [{"homogeneous_batches": True}, {"batch": 4}])
def test_a_set_without_captions_to_draw(sets, changes):
    bare = replace(
        sets["mine"], text_ids=[], texts=[], text_to_image=torch.empty(0, dtype=torch.long)
    )
    weights = {"bare": 2.0} if "batch" in changes else None
    data = cf.concatenate_datasets({"coco": sets["coco"], "bare": bare}, weights=weights)
    with pytest.raises(ValueError, match="bare has no captions in train"):
        sampler_of(TrainConfig(**{"batch": 8, **changes}), data["train"])


def test_batches_that_are_refused(sets, both):
    plan, weighted = TrainConfig(batch=8), cf.concatenate_datasets(sets, weights={"mine": 2})
    with pytest.raises(ValueError, match=r"homogeneous_batches .* and coco is one; leave it out"):
        sampler_of(replace(plan, homogeneous_batches=True), sets["coco"])
    with pytest.raises(ValueError, match="weights of data sets do not go with batch=0"):
        sampler_of(replace(plan, batch=0), weighted)
    none = Pairs(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    with pytest.raises(ValueError, match="weights of data sets do not go with MinedBatches"):
        sampler_of(
            plan,
            weighted,
            ExtraPositivePartition(Relation(torch.arange(1), images=1, besides=none)),
        )
    few = cf.concatenate_datasets(sets, weights={"mine": 0.1})["train"]
    with pytest.raises(ValueError, match="3 anchors do not fill one batch of 8"):
        sampler_of(replace(plan, homogeneous_batches=True, drop_last=True), few)


class StopAt(Callback):
    """Stops as a time limit does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, loop: TrainingLoop[Any], group: Any, losses: Any) -> None:
        if loop.progress.step == self.step:
            loop.stop_reason = "minutes"
            loop.save()


def trainer(output: Path, data: ImageTextDataset, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "loss": InfoNCELoss(temperature=0.1),
        "dev": data["dev"],
        "epochs": 3,
        "batch_size": 8,
        "config": TrainConfig(homogeneous_batches=True, log_every=1),
        "output": output,
    }
    model = small_model(data["train"])
    return Trainer(model, train=data["train"], **{**settings, **changes})


def test_training_resumes_to_the_same_numbers(sets, tmp_path):
    data = cf.concatenate_datasets(sets, weights={"mine": 1.5})
    whole = trainer(tmp_path / "whole", data).train()
    with pytest.raises(WorkStopped):
        trainer(tmp_path / "cut", data, callbacks=[StopAt(20)]).train()
    other = cf.concatenate_datasets(sets, weights={"mine": 2})
    with pytest.raises(ValueError, match="weights"):
        trainer(tmp_path / "cut", other, resume=True).train()
    resumed = trainer(tmp_path / "cut", data, resume=True).train()
    ours, theirs = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_dev_is_measured_set_by_set(sets, tmp_path):
    divided = {"train": 0.6, "dev": 0.2, "test": 0.2}
    table = cf.load_dataset(
        Path(sets["mine"].pictures.paths[0]).parent / "mine.csv", fractions=divided
    )
    data = cf.concatenate_datasets({"coco": sets["coco"], "mine": table})
    tuned = trainer(tmp_path / "run", data, epochs=2).train()
    figures = tuned.card.metrics
    alone = {
        name: cf.evaluate(tuned, each["dev"]).rsum
        for name, each in (("coco", sets["coco"]), ("mine", table))
    }
    assert figures["rsum_coco"] == alone["coco"]
    assert figures["rsum_mine"] == alone["mine"]
    assert figures["rsum"] == pytest.approx(sum(alone.values()) / 2, abs=1e-9)
    for name, one in data["dev"].separate().items():
        assert cf.evaluate(tuned, one).rsum == alone[name]
    chosen = replace(TrainConfig(log_every=1), select="rsum_mine")
    often = cf.concatenate_datasets({"coco": sets["coco"], "mine": table}, weights={"mine": 4})
    trainer(tmp_path / "chosen", often, epochs=2, config=chosen).train()  # captions meet themselves


def test_dev_of_a_set_without_captions_chooses_nothing(sets, tmp_path):
    none = {"text_ids": [], "texts": [], "text_to_image": torch.empty(0, dtype=torch.long)}
    bare = replace(sets["mine"], splits=["dev"] * len(sets["mine"]), **none)
    data = cf.concatenate_datasets({"coco": sets["coco"], "bare": bare})
    tuned = trainer(tmp_path / "run", data, epochs=1).train()
    assert tuned.card.metrics["rsum"] == tuned.card.metrics["rsum_coco"]
    assert "rsum_bare" not in tuned.card.metrics


def test_a_card_says_how_often_sets_were_drawn(sets, tmp_path):
    data = cf.concatenate_datasets(sets, weights={"mine": 1.5})
    tuned = trainer(tmp_path / "run", data, epochs=1).train()
    tuned.save_pretrained(tmp_path / "shared")
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "how often an epoch draws each of their captions: coco 1, mine 1.5." in card


def test_mined_lists_hold_items_of_all_sets(both):
    train = both["train"]
    negatives = cf.mine_hard_negatives(
        small_model(train), train, texts_per_image=20, images_per_text=10
    )
    names = train.columns["dataset"]
    images = negatives.store.lists.images
    found = {
        (names[train.text_to_image[text]], names[row])
        for text in range(len(images))
        for row in images[text].tolist()
    }
    assert {("coco", "mine"), ("mine", "coco"), ("coco", "coco")} <= found


def test_the_example_of_the_docs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    import recipes_cases

    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (example,) = (block for block in blocks if "concatenate_datasets" in block)
    monkeypatch.chdir(tmp_path)
    write_coco(tmp_path / "coco")
    write_table(tmp_path / "my-photos")
    recipes_cases.clip_like(tmp_path / "openai" / "clip-vit-base-patch32")
    exec(compile(example, "docs/data.md", "exec"), {})
    out = capsys.readouterr().out
    assert out.startswith("mine ")
    assert "mine test; whole split: 6 images, 12 texts" in out
