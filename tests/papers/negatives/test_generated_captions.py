"""Rules write, the store keeps, any host trains on it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tailored_cases
import train_cases
from artifact_cases import resealed
from counterfoil.core.types import Batch, Embeddings, Role
from counterfoil.data.batching import collate
from counterfoil.data.dataset import ImageTextDataset, Positives
from counterfoil.data.phrases import lemma
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.evaluation.foils.sets import open_foil_set
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCEWithCandidatesLoss
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.negatives.generated import ROWS, GeneratedCaptions, GeneratedStore
from counterfoil.negatives.online import MinedExtras
from counterfoil.negatives.sources import NegativeSource
from counterfoil.papers.compared.rules import RuleGenerator, frequent_nouns
from counterfoil.training.checkpoint import derive_seed
from counterfoil.training.step import TrainingStep
from sources_cases import begun

NOUNS = ("dog", "cat", "car", "tree", "boat", "kite", "bird", "apple")
ANCHORS = [0, 1, 7, 20, 35]


def dataset() -> ImageTextDataset:
    """Some captions have a number, some a relation, and the last image's nothing to change."""
    plain = train_cases.dataset()
    texts = [
        f"{'A' if row % 2 else 'Two'} {text.split()[1]}{'' if row % 2 else 's'} near the tree."
        for row, text in enumerate(plain.texts)
    ]
    return replace(plain, texts=[*texts[:-3], *("it is there",) * 3])


def processor(positives: Positives = "text") -> ProcessedDataset:
    made = dataset().with_positives(positives)
    return ProcessorConfig().fit(made).process(made)


def proposed(source: GeneratedCaptions, batch: Batch) -> MinedExtras:
    rng = torch.Generator().manual_seed(0)
    return source.propose(Any, batch, Any, Any, rng)  # type: ignore[arg-type]


def stored(folder: Path, *, most: int = 3, seed: int = 0) -> GeneratedStore:
    made, writer = dataset(), RuleGenerator(nouns=NOUNS, most=most, seed=seed)
    return GeneratedStore.write(
        folder, writer.foils(made), made, writer="rules", settings={"most": most}, seed=seed
    )


def source(folder: Path, processor: ProcessedDataset, **options: Any) -> GeneratedCaptions:
    """The sampler of a stored set of foils."""
    if not folder.exists():
        stored(folder)
    return begun(GeneratedCaptions(folder=str(folder), **options), processor)


def test_foils_differ_where_they_say_and_are_no_caption_of_the_image() -> None:
    made = dataset()
    said: dict[str, list[str]] = {}
    for text, image in zip(made.texts, made.text_to_image.tolist()):
        said.setdefault(made.image_ids[image], []).append(text.lower())
    found = list(RuleGenerator(nouns=NOUNS, most=4).foils(made))
    counts = Counter((foil.text, foil.kind) for foil in found)
    assert {kind for _, kind in counts} == {"noun", "numeral", "relation"}
    assert max(counts.values()) == 4
    assert len({(foil.text, foil.foil) for foil in found}) == len(found), "nothing twice"
    for foil in found:
        assert foil.caption == made.texts[made.text_ids.index(foil.text)]
        assert foil.foil.lower() not in said[foil.image]
        assert tailored_cases.undone(foil) == foil.caption
        if foil.kind == "noun":
            words = {lemma(w.strip(".")) for text in said[foil.image] for w in text.split()}
            assert lemma(foil.changed[-1].new) not in words


def test_the_seed_decides_and_the_order_of_captions_does_not() -> None:
    made = dataset()
    first = list(RuleGenerator(nouns=NOUNS, most=2).foils(made))
    assert first == list(RuleGenerator(nouns=NOUNS, most=2).foils(made))
    assert first != list(RuleGenerator(nouns=NOUNS, most=2, seed=1).foils(made))
    some = list(RuleGenerator(nouns=NOUNS, most=2).foils(made.subset(torch.tensor([5, 2]))))
    assert {foil.text: foil for foil in some}.items() <= {f.text: f for f in first}.items()


def test_nouns_are_those_of_the_captions_that_are_given() -> None:
    assert frequent_nouns(["A dog.", "A dog and a cat."], at_least=1) == ("dog", "cat")
    with pytest.raises(ValueError, match=r"1 nouns occur 2 times .* lower the frequency"):
        frequent_nouns(["A dog.", "A dog and a cat."], at_least=2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kinds": ("nuon",)}, "did you mean 'noun'"),
        ({"kinds": ()}, "name at least one kind"),
        ({"most": 0}, "most=0 write nothing"),
        ({"synonyms": "wordnot"}, "did you mean 'wordnet'"),
    ],
)
def test_writers_that_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RuleGenerator(nouns=NOUNS, **settings)


def test_a_store_comes_back_and_is_a_set_of_foils(tmp_path: Path) -> None:
    store = stored(tmp_path / "w")
    again = GeneratedStore.open(tmp_path / "w", fingerprint=dataset().fingerprint)
    assert again == store
    assert list(again.foils()) == list(RuleGenerator(nouns=NOUNS, most=3).foils(dataset()))
    assert len(again) == len(list(again.foils()))
    foils = open_foil_set([str(tmp_path / "w" / ROWS)])
    assert foils.form == "pairs"
    assert len(foils) == len(again)
    assert {item.category for item in foils.items} == set(again.manifest.counts)


def test_stores_that_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    stored(folder)
    with pytest.raises(ValueError, match="left alone"):
        stored(folder)
    with pytest.raises(ValueError, match=r"was written for corpus .* but this one is 0000"):
        GeneratedStore.open(folder, fingerprint="0000")
    with pytest.raises(ValueError, match="does not exist"):
        GeneratedStore.open(tmp_path, fingerprint="0000")
    lines = (folder / ROWS).read_text().splitlines()
    (folder / ROWS).write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(ValueError, match="is damaged: its checksum does not fit"):
        GeneratedStore.open(folder, fingerprint=dataset().fingerprint)
    store = GeneratedStore.open(resealed(folder), fingerprint=dataset().fingerprint)
    with pytest.raises(ValueError, match="its manifest promises"):
        list(store.foils())
    (folder / ROWS).write_text(json.dumps({**json.loads(lines[0]), "foil": 3}))
    with pytest.raises(ValueError, match="line 1 is damaged: foil"):
        list(store.foils())
    (folder / ROWS).unlink()
    with pytest.raises(ValueError, match="does not exist"):
        list(store.foils())


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Any:
        yield from list(RuleGenerator(nouns=NOUNS).foils(dataset()))[:2]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        GeneratedStore.write(tmp_path / "w", failing(), dataset(), writer="x", settings={}, seed=0)
    assert not list(tmp_path.iterdir())


def test_anchors_get_foils_of_their_own_captions(tmp_path: Path) -> None:
    store, seen = stored(tmp_path / "w"), processor()
    batch = collate(seen, torch.tensor(ANCHORS))
    own: dict[str, list[str]] = {}
    for foil in store.foils():
        own.setdefault(foil.text, []).append(foil.foil)
    proposal = proposed(source(tmp_path / "w", seen, count=7), batch)
    pairs = proposal.pairs[Role.WRITTEN]
    assert pairs.text.shape == pairs.image.shape == (len(ANCHORS), 7)
    for at, row in enumerate(ANCHORS):
        drawn = [place - len(batch.text_rows) for place in pairs.text[at].tolist() if place >= 0]
        theirs = own.get(seen.dataset.text_ids[row], [])
        assert len(drawn) == len(set(drawn)) == min(7, len(theirs))
        known = [seen.processor.process_texts([foil]).values[0].tolist() for foil in theirs]
        for place in drawn:
            kept = proposal.texts.mask[place]
            assert proposal.texts.values[place][kept].tolist() in known
    assert (pairs.text[-1] == -1).all(), "there is nothing to change"


class Counts(NegativeSource):
    """Proposes nothing."""

    def propose(self, *given: Any) -> MinedExtras:
        return MinedExtras()


@pytest.mark.parametrize("host", ["global", "bag"])
def test_any_host_trains_on_them_alone_and_together(host: str, tmp_path: Path) -> None:
    seen = processor()
    batch = collate(seen, torch.tensor(ANCHORS))
    written = source(tmp_path / "w", seen, count=2)
    judged = WeightedSum(
        terms={"t": (1.0, HardestTripletLoss()), "w": (1.0, MarginRankingLoss(role="written"))}
    )
    found = []
    for first in (True, False):
        sources = [written, Counts()] if first else [Counts(), written]
        step = TrainingStep(train_cases.host(host, seen), judged, sources=sources)
        losses = step(batch)
        losses["w"].backward()
        assert losses["w"] > 0
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in step.parameters())
        found.append(losses["w"].detach())
    torch.testing.assert_close(*found)


def test_shared_foils_are_asked_of_every_image(tmp_path: Path) -> None:
    seen = processor("id")  # one of them says what a caption of another image says
    batch = collate(seen, torch.tensor(ANCHORS))
    sampler = source(tmp_path / "w", seen, count=1, shared=True)
    proposal = proposed(sampler, batch)
    pairs = proposal.pairs[Role.WRITTEN]
    assert proposal.texts is not None
    assert pairs.text.shape == pairs.image.shape == (len(ANCHORS), len(proposal.texts))
    behind = len(batch.text_rows) + torch.arange(len(proposal.texts))
    assert (pairs.text == behind).all()
    assert (pairs.image == batch.anchors.image.unsqueeze(1)).all()
    model = train_cases.host("global", seen)
    loss = WeightedSum(terms={"contrast": (1.0, InfoNCEWithCandidatesLoss())})
    TrainingStep(model, loss, sources=[sampler])(batch)["contrast"].backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("host", ["global", "bag"])
def test_the_hardest_of_the_pool_by_a_slow_loop(host: str, shared: bool, tmp_path: Path) -> None:
    """VSE-C: sum over images of [margin + the pool's highest score - the caption's score]+."""
    seen = processor()
    batch = collate(seen, torch.tensor(ANCHORS))
    model = train_cases.host(host, seen).eval()
    terms = {"w": (1.0, MarginRankingLoss(role="written", margin=0.2))}
    whole, hardest = (
        source(tmp_path / "w", seen, count=2, shared=shared, hardest=one) for one in (False, True)
    )
    step = TrainingStep(model, WeightedSum(terms=terms), sources=[hardest], seed=3)
    found = step(batch)["w"]
    rng = torch.Generator().manual_seed(derive_seed(3, "propose", batch.step))
    views = model(batch)
    drawn = whole.propose(model, batch, views, torch.empty(0), rng)
    assert drawn.texts is not None
    pairs, images = drawn.pairs[Role.WRITTEN], views.inference.images
    texts = Embeddings.cat([views.inference.texts, model.encode_texts(drawn.texts)])
    wanted = torch.zeros(())
    for at in range(len(ANCHORS)):
        places = [place for place in pairs.text[at].tolist() if place >= 0]
        image = images.rows(batch.anchors.image[at : at + 1])
        own = model.score_matrix(image, texts.rows(batch.anchors.text[at : at + 1]))[0, 0]
        scores = [model.score_matrix(image, texts.rows(torch.tensor([p])))[0, 0] for p in places]
        if scores:
            wanted = wanted + (0.2 + max(scores) - own).clamp(min=0)
    torch.testing.assert_close(found, wanted)
    gradients = [
        torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameters in [[p for p in model.parameters() if p.requires_grad]]
        for loss in (found, wanted)
    ]
    for ours, slow in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, slow)


def test_only_the_kinds_that_are_wanted(tmp_path: Path) -> None:
    folder, seen = tmp_path / "w", processor()
    few = source(folder, seen, count=9, kinds=("numeral",))
    batch = collate(seen, torch.tensor(ANCHORS))
    pairs = proposed(few, batch).pairs[Role.WRITTEN]
    assert 0 < int((pairs.text >= 0).sum(1).max()) <= 3
    with pytest.raises(ValueError, match="no foils of nouns; it has: noun, numeral, relation"):
        source(folder, seen, kinds=("nouns",))
    with pytest.raises(ValueError, match="count=0"):
        source(folder, seen, count=0)
    with pytest.raises(ValueError, match="was written for corpus"):
        source(folder, tailored_cases.processor())


def test_a_batch_without_foils_has_no_pairs(tmp_path: Path) -> None:
    seen = processor()
    proposal = proposed(source(tmp_path / "w", seen), collate(seen, torch.tensor([35])))
    assert proposal.texts is None
    assert (proposal.pairs[Role.WRITTEN].text == -1).all()
