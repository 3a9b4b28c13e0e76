"""Texts that say what a caption of an image says are no negatives of it, wherever these are used.

That lists are the same however often mining was stopped, and for any number of processes and cores,
is tried in `test_mining` on captions of few words, many of which are equal.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import counterfoil as cf
import recipes_cases
from counterfoil.core.types import Pairs, Role
from counterfoil.data.batching import collate
from counterfoil.data.checks import check_dataset
from counterfoil.data.dataset import (
    ImageTextDataset,
    Positives,
    Relation,
    images_saying,
    plain_caption,
)
from counterfoil.data.features import FeatureArray
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.export.negatives import FORMATS, export_batches, export_negatives
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.queue import MomentumQueueLoss
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.models.frozen import FrozenAdapters
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.generated import (
    GeneratedCaption,
    GeneratedCaptions,
    GeneratedStore,
)
from counterfoil.negatives.mining import HardNegatives
from counterfoil.negatives.momentum import MomentumQueue
from counterfoil.negatives.sampling import OfflineNegativeSampler, RandomNegativeSampler
from counterfoil.negatives.store import NegativeStore
from counterfoil.papers.compared.graph import graph_negatives
from counterfoil.training.step import TrainingStep
from sources_cases import begun

WIDTH = 6
CAPTIONS = (
    (0, "A dog runs.", "dog"),
    (0, "a cat\u00a0sleeps", "cat"),
    (1, "a  DOG runs", "dog"),
    (1, "a red house", "house"),
    (2, "a dog runs", "dog"),  # three images share it
    (2, "一只狗。", "狗"),
    (3, "一只狗", "狗"),
    (3, "blue sky", "sky"),
    (3, "Blue sky .", "sky"),  # of one image alone
    (4, "a green field", "field"),
    (4, "caf\u00e9", "café"),
    (5, "cafe\u0301 ", "café"),
    (5, "five birds", "birds"),
    (6, "six boats", "boats"),
    (-1, "A CAT sleeps", "cat"),  # of no image
)
OWNER = torch.tensor([image for image, _, _ in CAPTIONS])
SAYS = [says for _, _, says in CAPTIONS]
IMAGES = int(OWNER.max()) + 1


def dataset(positives: Positives = "text", **more: Any) -> ImageTextDataset:
    """Images whose own captions, and those that say the same, are all near to them."""
    rng = np.random.default_rng(0)
    looks = rng.normal(size=(IMAGES, 1, WIDTH))
    kinds = {says: rng.normal(size=(1, WIDTH)) for says in SAYS}
    words = np.stack([kinds[says] + 0.3 * rng.normal(size=(1, WIDTH)) for says in SAYS])
    for text, image in enumerate(OWNER.tolist()):
        if image >= 0:
            looks[image] += words[text]
    return ImageTextDataset(
        name="equal",
        image_ids=[f"i{n}" for n in range(IMAGES)],
        text_ids=[f"t{n}" for n in range(len(CAPTIONS))],
        texts=[text for _, text, _ in CAPTIONS],
        text_to_image=OWNER,
        splits=["train"] * IMAGES,
        split_name="train",
        features=FeatureArray.of(looks.astype(np.float32)),
        text_features=FeatureArray.of(words.astype(np.float32)),
        positives=positives,
        **more,
    )


def true_pairs(besides: tuple[tuple[int, int], ...] = ()) -> torch.Tensor:
    """(I, T) bool, one pair at a time."""
    said = [{says for owner, _, says in CAPTIONS if owner == image} for image in range(IMAGES)]
    for image, text in besides:
        said[image].add(SAYS[text])
    return torch.tensor([[says in own for says in SAYS] for own in said])


def own_pairs() -> torch.Tensor:
    return torch.arange(IMAGES).unsqueeze(1) == OWNER


def mined(data: ImageTextDataset, **more: Any) -> HardNegatives:
    sizes = {"texts_per_image": len(CAPTIONS), "images_per_text": IMAGES}
    return cf.mine_hard_negatives(cf.load_model("vectors"), data, **{**sizes, **more})


def listed(negatives: HardNegatives) -> tuple[torch.Tensor, torch.Tensor]:
    """(I, T) bool, pairs in the lists of images, and in those of texts."""
    by_image, by_text = (torch.zeros(IMAGES, len(CAPTIONS), dtype=torch.bool) for _ in range(2))
    for image, texts in enumerate(negatives.lists.texts.tolist()):
        by_image[image, [text for text in texts if text >= 0]] = True
    for text, images in enumerate(negatives.lists.images.tolist()):
        by_text[[image for image in images if image >= 0], text] = True
    return by_image, by_text


@pytest.mark.parametrize(
    "one, other",
    [
        ("A dog.", "a dog"),
        (" a\tdog\n", "a   dog ."),
        ("a\u00a0dog", "a dog"),
        ("a\u3000dog", "a dog"),
        ("STRASSE", "straße"),
        ("狗。", "狗"),
        ("狗｡", "狗．"),
        ("caf\u00e9", "cafe\u0301"),
        ("ｄｏｇ", "dog"),
        ("कुत्ता।", "कुत्ता"),
        ("\ufeffa dog\u200b", "a dog"),
    ],
)
def test_captions_that_say_the_same(one: str, other: str) -> None:
    assert plain_caption(one) == plain_caption(other) != ""


@pytest.mark.parametrize(
    "one, other", [("a dog", "a dog?"), ("a dog", "adog"), ("...", ".."), ("狗", "猫"), ("", ".")]
)
def test_captions_that_differ(one: str, other: str) -> None:
    assert plain_caption(one) != plain_caption(other)


@pytest.mark.parametrize("seed", range(6))
def test_pairs_by_wording_are_those_of_a_loop(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    images, texts = 9, 40
    owner = torch.randint(-1, images, (texts,), generator=rng)
    said = torch.randint(0, (3, 12, 60)[seed % 3], (texts,), generator=rng).tolist()
    captions = ["" if number == 0 else f"wording {number}" for number in said]
    more = Pairs(torch.tensor([0, 8]), torch.tensor([3, 5])) if seed % 2 else None
    relation = Relation(owner, images=images, besides=more, texts=captions)
    true = [{said[t] for t in range(texts) if owner[t] == i} - {0} for i in range(images)]
    if more is not None:
        for image, text in zip(more.image.tolist(), more.text.tolist(), strict=True):
            true[image] |= {said[text]} - {0}
    wanted = torch.tensor([[n in own for n in said] for own in true])
    own = torch.arange(images).unsqueeze(1) == owner
    weight = relation.exempt_weight(
        torch.arange(images).unsqueeze(1).expand(images, texts),
        torch.arange(texts).expand(images, texts),
    )
    judged = torch.zeros_like(own)
    if more is not None:
        judged[more.image, more.text] = True
    assert torch.equal(weight >= 0, (wanted & ~own) | judged)
    if (equal := relation.equal) is None:
        assert not (wanted & ~own).any()
        return
    rows, columns = torch.randperm(images, generator=rng), torch.randperm(texts, generator=rng)
    for found, start in ((equal, (rows, columns)), (equal.select(rows, columns), None)):
        chosen = start or (torch.arange(images), torch.arange(texts))
        dense = torch.zeros(images, texts, dtype=torch.bool)
        row, column = found.places(*chosen)
        dense[row, column] = True
        assert len(row) == int(dense.sum()), "no pair twice"
        assert torch.equal(dense & ~own[rows][:, columns], (wanted & ~own)[rows][:, columns])
    assert equal.pairs == int((wanted & ~own).sum())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_lists_hold_all_wrong_pairs_and_no_true_one(precision: Any) -> None:
    for pairs in listed(mined(dataset(), precision=precision)):
        assert torch.equal(pairs, ~true_pairs())
    for pairs in listed(mined(dataset("id"), precision=precision)):
        assert torch.equal(pairs, ~own_pairs())


def test_what_equals_a_confirmed_caption_is_true_as_well() -> None:
    """An extra positive or ambiguous pair: image 6 shows the dog, and perhaps the café."""
    extra = {
        "extra_positives": Pairs(torch.tensor([6]), torch.tensor([2])),
        "ambiguous": Pairs(torch.tensor([6]), torch.tensor([11])),
    }
    for pairs in listed(mined(dataset(**extra))):
        assert torch.equal(pairs, ~true_pairs(((6, 2), (6, 11))))


def test_filters_and_rows_keep_to_it() -> None:
    plan = FilterConfig(below_positive=-0.5, captions=0.9, skip=1)
    negatives = mined(dataset(), filters=plan)
    for pairs in listed(negatives):
        assert pairs.any()
        assert not (pairs & true_pairs()).any()
    for row in mined(dataset()).rows():
        own = [text for owner, text, _ in CAPTIONS if f"i{owner}" == row["image_id"]]
        wordings = {SAYS[dataset().texts.index(text)] for text in row["negatives"]}
        assert not wordings & {SAYS[dataset().texts.index(text)] for text in own}


def test_no_list_from_captions_alone_holds_one() -> None:
    for pairs in listed(graph_negatives(dataset(), texts_per_image=9, images_per_text=6)):
        assert not (pairs & true_pairs()).any()


def test_lists_that_count_them_are_read_without(tmp_path: Path) -> None:
    """Lists of a paper's recipe, or of the authors, in a training or an export of today."""
    mined(dataset("id")).save(tmp_path / "lists")
    data = dataset()
    store = NegativeStore.open(
        tmp_path / "lists", fingerprint=data.fingerprint, relation=data.relation
    )
    for pairs in listed(HardNegatives(store, data)):
        assert torch.equal(pairs, ~true_pairs())
    scores, rows = store.lists.text_scores, store.lists.texts
    assert scores is not None
    assert torch.equal(scores.isneginf(), rows < 0)
    assert (scores[:, 1:] <= scores[:, :-1]).all()


@pytest.mark.parametrize("form", [name for name in FORMATS if name != "webdataset"])
def test_exports_hold_none(form: str, tmp_path: Path) -> None:
    data = dataset("id")
    mined(data, texts_per_image=6, images_per_text=3).save(tmp_path / "lists")
    export_negatives(tmp_path / "lists", form, tmp_path / "out", dataset(), most=4)
    if form == "sentence-transformers":
        lines = (tmp_path / "out/text-to-image.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        places = {text: row for row, text in enumerate(data.texts)}
        pairs = [
            (int(value[1:]), places[row["anchor"]])
            for row in rows
            for name, value in row.items()
            if name.startswith("negative")
        ]
        assert pairs
        assert not any(true_pairs()[pair] for pair in pairs)


def test_batches_name_them(tmp_path: Path) -> None:
    mined(dataset(), texts_per_image=6, images_per_text=3).save(tmp_path / "lists")
    export_batches(
        tmp_path / "lists", "flagembedding", tmp_path / "out", dataset(), batch=6, epochs=4
    )
    lines = (tmp_path / "out/batches.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    found = 0
    for at, row in enumerate(rows):
        batch = rows[at // 6 * 6 : at // 6 * 6 + 6]
        image = int(row["query"][1:])
        said = [SAYS[dataset().texts.index(other["pos"][0])] for other in batch]
        own = {says for owner, _, says in CAPTIONS if owner == image}
        places = [j for j, says in enumerate(said) if says in own and j != at % 6]
        assert row["false_negatives"] == places
        found += len(places)
    assert found


def test_recall_does_not_depend_on_it() -> None:
    results = [cf.evaluate(cf.load_model("vectors"), dataset(kind)) for kind in ("text", "id")]
    for one, other in zip(*(result.report.ranked for result in results), strict=True):
        assert torch.equal(one.ranks, other.ranks)
    assert results[0].protocol == results[1].protocol


# Batches and losses.


def processed(data: ImageTextDataset) -> ProcessedDataset:
    return ProcessorConfig(texts="vectors").fit(data).process(data)


def host() -> FrozenAdapters:
    torch.manual_seed(3)
    model = FrozenAdapters(width=WIDTH, hidden=5)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


LOSSES = {"triplet": HardestTripletLoss(margin=3.0), "infonce": InfoNCELoss(temperature=0.1)}
ANCHORS = torch.randperm(len(CAPTIONS) - 1, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("whole", [False, True], ids=["batch", "tiled"])
@pytest.mark.parametrize("positives", ["text", "id"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_do_not_count_them(name: str, positives: Positives, whole: bool) -> None:
    model, batch = host(), collate(processed(dataset(positives)), ANCHORS)
    step = TrainingStep(model, WeightedSum(terms={"loss": (1.0, LOSSES[name])}), tiled=whole)
    scores = model.score_matrix(
        model.encode_images(batch.images), model.encode_texts(batch.texts)
    ).detach()
    true = (true_pairs() if positives == "text" else own_pairs())[:, ANCHORS][batch.image_rows]
    out = scores.masked_fill(true & ~batch.positive, -torch.inf)
    found = step(batch)["loss"]
    torch.testing.assert_close(found, LOSSES[name](out, batch.positive))
    found.backward()
    if positives == "text":
        assert float(found.detach()) < float(LOSSES[name](scores, batch.positive))


def test_the_authors_diagonal_counts_them() -> None:
    batch = collate(processed(dataset("diagonal")), ANCHORS)
    assert batch.block == (len(ANCHORS), len(ANCHORS))
    assert batch.equal is None
    assert batch.exempt is None


def test_no_sampler_draws_them() -> None:
    relation, true = dataset().relation, true_pairs()
    rng, anchors = torch.Generator().manual_seed(0), ANCHORS.repeat(40)
    drawn = dict(RandomNegativeSampler(relation=relation, texts=3, images=3).draw(anchors, rng))
    lists = mined(dataset("id")).lists
    of_lists = OfflineNegativeSampler(lists=lists, relation=relation).draw(anchors, rng)
    for pairs in (*drawn.values(), of_lists[Role.HARD_TEXT], of_lists[Role.HARD_IMAGE]):
        assert not true[pairs.image, pairs.text].any()
    cross = of_lists[Role.CROSS]
    assert not true[cross.image, cross.text].any(), "drawn again"
    # a caption of the wrong image may be true of the other one; then it does not count
    batch = collate(processed(dataset()), ANCHORS, negatives={Role.COMPANION: drawn_companions()})
    assert batch.exempt is not None
    wanted = true[drawn_companions().image, drawn_companions().text]
    assert torch.equal(batch.exempt.negatives[Role.COMPANION], wanted)
    assert wanted.any()
    assert not wanted.all()


def drawn_companions() -> Pairs:
    rng = torch.Generator().manual_seed(4)
    shape = (len(ANCHORS), 5)
    texts = torch.randint(len(CAPTIONS), shape, generator=rng)
    images = torch.randint(IMAGES, shape, generator=rng)
    images = torch.where(OWNER[texts] == images, (images + 1) % IMAGES, images)
    return Pairs(images, texts)


def test_a_queue_holds_them_back() -> None:
    queue = MomentumQueue(size=32)
    model, loss = host(), WeightedSum(terms={"queue": (1.0, MomentumQueueLoss())})
    queue.begin(model, processed(dataset()), loss, batches=1)
    step = TrainingStep(model, loss, sources=[queue])
    texts: list[int] = []
    for rows in ([0, 3, 6], [2, 7, 12], [4, 5, 10, 13]):
        batch = collate(processed(dataset()), torch.tensor(rows))
        proposed: list[Any] = []
        propose = queue.propose
        queue.propose = lambda *given, p=propose, s=proposed: s.append(p(*given)) or s[-1]  # type: ignore[method-assign]
        step(batch)
        queue.propose = propose  # type: ignore[method-assign]
        scores = proposed[0].scores
        if texts:
            true = true_pairs()
            anchors, images = OWNER[rows], OWNER[texts]
            out = scores[Role.QUEUE_TEXT].isneginf()[:, : len(texts)]
            assert torch.equal(out, true[anchors][:, texts])
            out = scores[Role.QUEUE_IMAGE].isneginf()[:, : len(texts)]
            assert torch.equal(out, true[images][:, rows].T)
        texts += rows


@pytest.mark.parametrize("shared", [False, True])
def test_a_generated_caption_that_is_true_is_none(shared: bool, tmp_path: Path) -> None:
    """A foil that another caption of the image says; shared, one that the other image's says."""
    data = replace(dataset(), text_features=None)
    foils = [
        ("i0", "t0", "A CAT sleeps."),  # another caption of image 0
        ("i0", "t0", "a red  HOUSE"),  # a caption of image 1
        ("i1", "t3", "a red mouse"),
    ]
    written = [
        GeneratedCaption(image, text, data.texts[int(text[1:])], foil, "noun", ())
        for image, text, foil in foils
    ]
    store = GeneratedStore.write(
        tmp_path / "foils", written, data, writer="rules", settings={}, seed=0
    )
    wanted = {0: {"a red  HOUSE"}, 1: {"a red mouse"}}
    if shared:
        wanted = {0: {"a red  HOUSE", "a red mouse"}, 1: {"a red mouse"}}
    processor = ProcessorConfig(min_count=1).fit(data).process(data)
    source = begun(GeneratedCaptions(folder=str(store.folder), shared=shared), processor)
    batch = collate(processor, torch.tensor([0, 3]))
    rng = torch.Generator().manual_seed(0)
    extras = source.propose(host(), batch, None, None, rng)  # type: ignore[arg-type]
    assert extras.texts is not None
    tokens = {
        tuple(row[mask].tolist()): foil
        for _, _, foil in foils
        for given in [processor.processor.process_texts([foil])]
        for row, mask in zip(given.values, given.mask, strict=True)
    }
    pairs = extras.pairs[Role.WRITTEN]
    found: dict[int, set[str]] = {0: set(), 1: set()}
    for image, text in zip(pairs.image.flatten().tolist(), pairs.text.flatten().tolist()):
        if text >= 0:
            place = text - len(batch.text_rows)
            row = extras.texts.values[place][extras.texts.mask[place]]
            found[int(batch.image_rows[image])].add(tokens[tuple(row.tolist())])
    assert found == wanted
    assert images_saying(data.with_positives("id"), ["a cat sleeps"]) == {}


# Class names, and lists that filters leave empty.


def class_names(images: int, classes: int) -> ImageTextDataset:
    rng = np.random.default_rng(0)
    owner = torch.arange(images)
    looks, words = (rng.normal(size=(images, 1, 4)).astype(np.float32) for _ in range(2))
    return ImageTextDataset(
        name="classes",
        image_ids=[f"i{n}" for n in range(images)],
        text_ids=[f"t{n}" for n in range(images)],
        texts=[f"A photo of a thing {n % classes}." for n in range(images)],
        text_to_image=owner,
        splits=["train"] * images,
        split_name="train",
        features=FeatureArray.of(looks),
        text_features=FeatureArray.of(words),
    )


def test_many_equal_captions_take_memory_by_item_not_by_pair() -> None:
    data = class_names(20_000, 2)
    equal = data.relation.equal
    assert equal is not None
    assert sum(part.numel() for part in (equal.of_text, equal.starts, equal.keys)) <= 3 * 20_001
    assert equal.pairs == 2 * (10_000 * 10_000 - 10_000)
    rows = torch.arange(500)
    row, column = equal.places(rows, rows + 7)
    assert (rows[row] % 2 == (rows + 7)[column] % 2).all()
    assert len(row) == 500 * 250
    batch = collate(processed(data), torch.arange(64))
    assert batch.exempt is not None
    assert len(batch.exempt.block.image) == 0
    mined = cf.mine_hard_negatives(
        cf.load_model("vectors"),
        class_names(3000, 2),
        texts_per_image=3,
        images_per_text=3,
    ).lists
    assert ((mined.texts % 2) != (torch.arange(3000) % 2).unsqueeze(1)).all()


def test_data_check_says_the_share() -> None:
    warnings = check_dataset(class_names(300, 3)).warnings
    (found,) = [line for line in warnings if "say what a caption of another image says" in line]
    assert found.startswith("train: 300 of 300 captions (100.0%)")
    assert "2 × margin" in found
    few = class_names(300, 300)
    texts = [*few.texts[:-1], few.texts[0].upper()]
    quiet = check_dataset(replace(few, texts=texts)).warnings  # 2 of 300
    assert not any("say what" in line for line in quiet)


def test_data_without_a_wrong_pair_are_refused_before_anything_is_trained() -> None:
    data = class_names(4, 1)
    with pytest.raises(ValueError, match="4 images and 4 captions, all of which are true of every"):
        data.check_wrong_pairs()
    data.with_positives("id").check_wrong_pairs()
    with pytest.raises(ValueError, match=r"no wrong caption of any image is left.*of 16 pairs, 12"):
        cf.mine_hard_negatives(cf.load_model("vectors"), data)


def test_counts_are_those_of_a_loop() -> None:
    data = dataset()
    plan = FilterConfig(captions=0.999, lowest=-0.2, below_positive=0.0, highest=0.5, skip=1)
    found = mined(data, filters=plan).store.manifest
    scores = cf.load_model("vectors").embed(data)
    matrix = scores.model.score_matrix(scores.images, scores.texts)
    true, own = true_pairs(), own_pairs()
    for side, key in (("image", 1), ("text", 0)):
        level = matrix.masked_fill(~own, torch.inf).amin(key, keepdim=True)
        left = ~true
        removed = [int((true & ~own).sum()), 0]  # the captions filter finds the same ones
        for inside in (matrix >= -0.2, matrix <= 0.5, matrix <= level):
            removed.append(int((left & ~inside).sum()))
            left &= inside
        removed.append(int(left.any(key).sum()))
        assert [counts[side] for counts in found.removed.values()] == removed  # type: ignore[index]
        lengths = (left.sum(key) - 1).clamp(min=0)
        counted = found.texts_of_images if side == "image" else found.images_of_texts
        assert counted is not None
        assert counted.kept == int(lengths.sum())
        assert counted.empty == int((lengths == 0).sum())
        assert counted.empty + counted.short == counted.lists
    assert [phrase.split()[0] for phrase in found.removed] == [
        "texts",
        "texts",
        "scores",
        "scores",
        "scores",
        "the",
    ]


@pytest.mark.parametrize(
    "plan, words",
    [
        (FilterConfig(highest=-5), "scores above -5"),
        (FilterConfig(lowest=5.0), "scores below 5.0"),
        (FilterConfig(captions=1e-9, lowest=2.0), "scores below 2.0"),
        (FilterConfig(skip=100), "the 100 hardest of the rest"),
    ],
)
def test_filters_that_leave_nothing_are_named(plan: FilterConfig, words: str) -> None:
    with pytest.raises(ValueError, match=f"left out as {words}; loosen that filter"):
        mined(dataset(), filters=plan)


def test_the_command_counts_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    given = dataset()
    assert given.features is not None
    assert given.text_features is not None
    np.save(data / "images.npy", np.asarray(given.features.values)[:, 0])
    np.save(data / "texts.npy", np.asarray(given.text_features.values)[:, 0])
    np.save(data / "owner.npy", OWNER.numpy())
    (data / "captions.txt").write_text("\n".join(given.texts) + "\n", encoding="utf-8")
    (data / "splits.json").write_text(json.dumps(["train"] * IMAGES))
    sizes = ("--texts-per-image", "4", "--images-per-text", "3")

    def run(name: str, *more: str) -> tuple[int, str]:
        out = str(tmp_path / name)
        code = recipes_cases.run("mine", "vectors", "--data", data, "--output", out, *sizes, *more)
        shown = capsys.readouterr()
        return code, " ".join(f"{shown.out} {shown.err}".split())

    code, lines = run("lists", "--filter", "highest=0.9")
    assert code == 0, lines
    for part in (
        "texts of images:",
        "images of texts:",
        "short and",
        "left out, texts that say what a caption of the image says: 10 texts of images, 10 images",
        "left out, scores above 0.9:",
    ):
        assert part in lines
    manifest = json.loads((tmp_path / "lists/manifest.json").read_text())
    assert manifest["removed"]["texts that say what a caption of the image says"]["text"] == 10
    code, refused = run("nothing", "--filter", "highest=-2")
    assert code == 2
    assert "left out as scores above -2" in refused
    assert not list(tmp_path.glob("nothing*")), "nothing is saved, and nothing to be resumed"
