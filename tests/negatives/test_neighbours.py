"""What joins a batch, and what a batch of NegCLIP holds, against loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import processes
import train_cases
from counterfoil.core.types import Pairs
from counterfoil.data.batching import BatchSampler
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCEWithCandidatesLoss
from counterfoil.negatives.generated import (
    ChangedSpan,
    GeneratedCaption,
    GeneratedCaptions,
    GeneratedStore,
)
from counterfoil.negatives.sampling import NeighbourImages
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.training.batches import BatchStream
from counterfoil.training.config import TrainConfig
from counterfoil.training.mined import MinedNeighbours
from counterfoil.training.step import OptimizerStep, TrainingStep
from negatives_cases import ragged, random_lists, rng
from sources_cases import begun

TEMPERATURE = 0.3


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), batch=st.integers(1, 20), orphans=st.integers(0, 3))
def test_neighbours_are_listed_images_with_a_caption_of_their_own(
    seed: int, batch: int, orphans: int
) -> None:
    relation = ragged(9, seed, orphans)
    lists = random_lists(relation, h=4, k=3, seed=seed)
    texts = (relation.text_to_image >= 0).nonzero().squeeze(1)
    texts = texts[torch.randperm(len(texts), generator=rng(seed))[:batch]]
    found = NeighbourImages(lists=lists, relation=relation).joined(texts, rng(seed)).tolist()
    asked, joined = found[: len(texts)], found[len(texts) :]
    assert asked == texts.tolist()
    assert len(joined) <= len(texts)
    assert len(set(found)) == len(found), "nothing twice"
    text_to_image = relation.text_to_image.tolist()
    listed = {image for text in asked for image in lists.images[text].tolist()}
    assert {text_to_image[text] for text in joined} <= listed - {-1}


def test_every_listed_image_and_each_of_its_captions_comes() -> None:
    relation = Relation(torch.tensor([0, 1, 1, 2, 3]), images=5)
    images = torch.tensor([[1, 2, 4], [0, -1, -1], [0, -1, -1], [-1, -1, -1], [0, -1, -1]])
    texts = torch.tensor([[1], [0], [0], [0], [0]])
    neighbours = NeighbourImages(
        lists=HardNegativeLists(texts.int(), images.int()), relation=relation
    )
    drawn = [neighbours.joined(torch.tensor([0]), rng(seed)).tolist() for seed in range(60)]
    assert {tuple(texts[1:]) for texts in drawn} == {(1,), (2,), (3,)}
    alone = neighbours.joined(torch.tensor([3]), rng()).tolist()
    assert alone == [3], "a caption whose list is empty brings nobody"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), batch=st.integers(1, 12))
def test_nothing_joins_of_which_something_in_the_batch_was_judged_true(
    seed: int, batch: int
) -> None:
    """Anchors meet as the sampler has it; what joins is a negative of all others and they of it."""
    plain = ragged(9, seed, 0)
    lists = random_lists(plain, h=4, k=3, seed=seed)
    text_to_image = plain.text_to_image.tolist()
    chance = rng(seed)
    true = {
        (int(torch.randint(9, (), generator=chance)), text)
        for text in torch.randperm(len(text_to_image), generator=chance)[:8].tolist()
    }
    true = {(image, text) for image, text in true if text_to_image[text] != image}
    besides = Pairs(*torch.tensor(sorted(true)).reshape(-1, 2).T)
    relation = Relation(plain.text_to_image, images=9, besides=besides)
    texts = torch.randperm(len(text_to_image), generator=rng(seed))[:batch]
    lists = lists.checked(relation)  # without the judged pairs, which are never drawn
    found = NeighbourImages(lists=lists, relation=relation).joined(texts, rng(seed)).tolist()
    without = NeighbourImages(lists=lists, relation=plain).joined(texts, rng(seed)).tolist()
    asked, joined = found[:batch], found[batch:]
    assert asked == texts.tolist()
    assert joined == [text for text in without[batch:] if text in joined]

    def clash(one: int, other: int) -> bool:
        return (text_to_image[one], other) in true or (text_to_image[other], one) in true

    for place, text in enumerate(found[batch:], batch):
        assert not any(clash(text, other) for other in found[:place])
    for text in set(without) - set(found):
        assert any(clash(text, other) for other in found)


def test_lists_in_which_nobody_joins_are_refused() -> None:
    relation = Relation(torch.tensor([0, 1]), images=2)
    none = torch.full((2, 1), -1, dtype=torch.int32)
    with pytest.raises(ValueError, match="no caption has a mined image"):
        NeighbourImages(lists=HardNegativeLists(none, none), relation=relation)
    with pytest.raises(ValueError, match="the lists are of 2 images and 2 texts"):
        NeighbourImages(
            lists=HardNegativeLists(none, none), relation=Relation(torch.tensor([0]), images=1)
        )


def foil(caption: str) -> str:
    return caption.replace("a ", "is ", 1)


def foils(dataset: ImageTextDataset) -> Iterator[GeneratedCaption]:
    """One of each caption, but none of the first."""
    for row, text in list(enumerate(dataset.texts))[1:]:
        image = dataset.image_ids[int(dataset.text_to_image[row])]
        changed = (ChangedSpan("a", "is", 0, 2),)
        yield GeneratedCaption(image, dataset.text_ids[row], text, foil(text), "noun", changed)


def cross_entropy(true: Tensor, wrong: list[Tensor]) -> Tensor:
    logits = torch.stack([true, *wrong]) / TEMPERATURE
    return torch.logsumexp(logits, 0) - logits[0]


def slowly(
    dataset: ImageTextDataset, captions: list[int], score: Callable[[int, str], Tensor]
) -> Tensor:
    """NegCLIP's loss of a batch that holds these captions: their images, and a foil of each."""
    text_to_image = dataset.text_to_image.tolist()
    written = [foil(dataset.texts[row]) for row in captions if row]
    total = torch.zeros(())
    for row in captions:
        image, text = text_to_image[row], dataset.texts[row]
        others = [dataset.texts[t] for t in captions if text_to_image[t] != image]
        beside = [score(image, wrong) for wrong in [*others, *written]]
        above = [score(i, text) for i in {text_to_image[t] for t in captions} if i != image]
        true = score(image, text)
        total = total + cross_entropy(true, beside) + cross_entropy(true, above)
    return total / 2 / len(captions)


def listed(dataset: ImageTextDataset) -> HardNegativeLists:
    return random_lists(dataset.relation, h=4, k=3, seed=1)


def negclip(dataset: ImageTextDataset, folder: Path) -> tuple[BatchStream, TrainingStep]:
    """Batches with neighbours, and a step with the foils of a folder."""
    processor = ProcessorConfig().fit(dataset).process(dataset)
    neighbours = MinedNeighbours(listed(dataset))
    sampler = BatchSampler(dataset.relation, batch=5, seed=2, drop_last=True)
    stream = BatchStream(
        processor=processor, sampler=sampler, epochs=2, seed=2, sources=(neighbours,)
    )
    joined = InfoNCEWithCandidatesLoss(temperature=TEMPERATURE, reduction="mean")
    host = train_cases.host("global", processor).eval()
    neighbours.check(host, dataset)
    neighbours.begin(host, processor, WeightedSum(terms={"contrast": (1.0, joined)}), batches=1)
    written = begun(GeneratedCaptions(folder=str(folder), count=1, shared=True), processor)
    return stream, TrainingStep(
        host, WeightedSum(terms={"contrast": (1.0, joined)}), sources=[written]
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset, folder = train_cases.dataset(captions=2), tmp_path_factory.mktemp("foils") / "w"
    GeneratedStore.write(folder, foils(dataset), dataset, writer="rules", settings={}, seed=0)
    return folder


def test_batches_of_negclip_against_a_loop(written: Path) -> None:
    """B pairs, B neighbours and a foil of each: images choose among 4B texts, texts of 2B images.

    Two neighbours may be one, and one of them an anchor: then there are fewer.
    """
    dataset = train_cases.dataset(captions=2)
    stream, step = negclip(dataset, written)
    processor, sampler, host, lists = stream.processor, stream.sampler, step.model, listed(dataset)

    def score(image: int, text: str) -> Tensor:
        seen = host.encode_images(processor.images(torch.tensor([image])))
        return host.score_matrix(
            seen, host.encode_texts(processor.processor.process_texts([text]))
        )[0, 0]

    sizes = []
    for batch, asked in zip(stream.batches(), [*sampler.epoch(0), *sampler.epoch(1)], strict=True):
        rows = batch.text_rows.tolist()
        assert rows[:5] == asked.tolist()
        near = {image for text in rows[:5] for image in lists.images[text].tolist()}
        assert {int(dataset.text_to_image[text]) for text in rows[5:]} <= near
        assert batch.block == (len(dataset.text_to_image[rows].unique()), len(rows))
        assert len(batch.anchors.text) == len(rows), "neighbours are asked as anchors are"
        found = step(batch)["contrast"]
        torch.testing.assert_close(found, slowly(dataset, rows, score), rtol=1e-5, atol=1e-5)
        sizes.append(len(rows))
    assert 5 < max(sizes) <= 10
    assert len(sizes) == 8


def trained(folder: str) -> list[list[float]]:
    """Losses and weights of NegCLIP's steps on as many processes as there are."""
    stream, step = negclip(train_cases.dataset(captions=2), Path(folder))
    update = OptimizerStep(TrainConfig(), step)
    losses = [float(update([batch], 1.0)["loss"]) for batch in stream.batches()]
    return [losses, *(value.flatten().tolist() for value in step.model.state_dict().values())]


def test_two_processes_train_as_one_does(written: Path) -> None:
    alone, *together = trained(str(written)), *processes.run(trained, 2, str(written))
    assert len(alone[0]) == 8
    assert len(set(alone[0])) == 8
    for found in together:
        for ours, wanted in zip(found, alone, strict=True):
            assert ours == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_batches_are_the_same_wherever_a_training_goes_on(written: Path) -> None:
    dataset = train_cases.dataset(captions=2)
    rows = [batch.text_rows.tolist() for batch in negclip(dataset, written)[0].batches()]
    for start in range(len(rows)):
        later = negclip(dataset, written)[0].batches(start)
        assert [batch.text_rows.tolist() for batch in later] == rows[start:]
