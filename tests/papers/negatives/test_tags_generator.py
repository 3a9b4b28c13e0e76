from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tailored_cases as cases
import train_cases
from counterfoil.core.types import Batch, ModalityBatch, Pairs, Role
from counterfoil.data.processor import ProcessedDataset, Processor, ProcessorConfig
from counterfoil.data.tokenizers import SPECIAL, WordPieceTokenizer, WordTokenizer
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.negatives.sources import MinedExtras
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.tags.generation import written_anchors
from counterfoil.papers.tags.inputs import CandidateFilter
from counterfoil.papers.tags.losses import WordLoss
from counterfoil.training.step import TrainingStep
from papers.released_bugs import StrayTailored

TASKS = ("masked", "doubt", "correct")


@pytest.fixture
def seen() -> ProcessedDataset:
    return cases.processor()


@pytest.fixture
def batch(seen: ProcessedDataset) -> Batch:
    return cases.batch_of(seen)


@pytest.fixture
def model(seen: ProcessedDataset) -> UNITER:
    return cases.host(seen)


def objective(words: tuple[str, ...]) -> WeightedSum:
    terms: dict[str, Any] = {name: (0.1, WordLoss(task=name)) for name in words}
    return WeightedSum(
        terms={
            "triplet": (1.0, HardestTripletLoss()),
            "written": (1.0, MarginRankingLoss(role="written")),
            **terms,
        }
    )


def originals(seen: Any, batch: Batch) -> torch.Tensor:
    return seen.texts(batch.text_rows[batch.anchors.text]).values


def written(proposal: MinedExtras, batch: Batch) -> dict[int, list[torch.Tensor]]:
    """Values of the written captions of each anchor, in order."""
    pairs = proposal.pairs[Role.WRITTEN]
    assert torch.equal(pairs.image, batch.anchors.image[:, None].expand_as(pairs.image))
    return {
        b: [proposal.texts.values[p - len(batch.text_rows)] for p in row if p >= 0]
        for b, row in enumerate(pairs.text)
    }


def test_what_is_written_may_be_false_and_only_phrases_change(
    seen: ProcessedDataset, batch: Batch, model: UNITER
) -> None:
    source = cases.writer(seen)
    proposal, _, _ = cases.proposed(source, model, batch)
    old = originals(seen, batch)
    relation = seen.dataset.relation
    for b, texts in written(proposal, batch).items():
        image = int(batch.image_rows[batch.anchors.image[b]])
        rows, _ = relation.captions(torch.tensor([image]))
        known = set(seen.texts(rows).values.flatten().tolist())
        row = int(batch.text_rows[batch.anchors.text[b]])
        phrases = source.inputs.phrases(torch.tensor([row]), old.shape[1])[0].any(0)
        assert texts, "something was written"
        assert len({tuple(t.tolist()) for t in texts}) == len(texts), "nothing twice"
        for text in texts:
            changed = text != old[b]
            assert changed.any()
            assert not (changed & ~phrases).any(), "outside of phrases nothing changes"
            assert not set(text[changed].tolist()) <= known, "the paper's rule"
            assert (text[changed] > 3).all(), "special tokens are banned"


def test_the_hardest_come_first_and_none_is_missed(seen: ProcessedDataset) -> None:
    batch, model = cases.batch_of(seen), cases.host(seen, dropout=0.3).train()
    found = []
    for keep in (2, 99):
        torch.manual_seed(3)
        proposal, _, _ = cases.proposed(cases.writer(seen, keep=keep), model, batch)
        found.append(written(proposal, batch))
    assert model.training
    model.eval()
    images = model.encode_images(batch.images.rows(batch.anchors.image))
    masks = seen.texts(batch.text_rows[batch.anchors.text]).mask
    for b, texts in found[1].items():
        values = torch.stack(texts)
        items = ModalityBatch(torch.full((len(texts),), -1), values, masks[b].expand_as(values))
        rows = torch.full((len(texts),), b)
        scores = model.score_pairs(images.rows(rows), model.encode_texts(items)).tolist()
        assert scores == sorted(scores, reverse=True), "as scored without dropout"
        assert all(torch.equal(*two) for two in zip(found[0][b], texts[:2], strict=True))


def test_word_tasks_say_what_was_changed(
    seen: ProcessedDataset, batch: Batch, model: UNITER
) -> None:
    plain, _, _ = cases.proposed(cases.writer(seen), model, batch)
    whole, _, _ = cases.proposed(cases.writer(seen, words=TASKS), model, batch)
    texts, old = written(plain, batch), originals(seen, batch)
    mask = seen.texts(batch.text_rows[batch.anchors.text]).mask
    same = torch.cat([(t == old[b])[mask[b]] for b in texts for t in texts[b]])
    doubt, correct = whole.words["doubt"], whole.words["correct"]
    assert torch.equal(doubt.labels.bool(), same)
    assert doubt.logits.shape == (len(same), 2)
    assert (~same).sum() <= len(correct.labels) < len(same)
    for b in texts:
        assert set(correct.labels[correct.anchor == b].tolist()) <= set(old[b].tolist())
        wrong = sum(int((t != old[b]).sum()) for t in texts[b])
        assert int((doubt.labels[doubt.anchor == b] == 0).sum()) == wrong
    masked = whole.words["masked"]
    assert masked.logits.shape[0] == len(masked.labels) == len(masked.anchor)
    pairs = plain.pairs[Role.WRITTEN]
    model_scores = whole.scores[Role.WRITTEN]
    assert torch.equal(model_scores.isneginf(), pairs.text < 0)
    encoded = model.encode_texts(plain.texts)
    for b in texts:
        real = pairs.text[b] >= 0
        rows = pairs.text[b][real] - len(batch.text_rows)
        images = model.encode_images(batch.images.rows(batch.anchors.image[[b] * len(rows)]))
        torch.testing.assert_close(
            model_scores[b][real],
            model.score_pairs(images, encoded.rows(rows)),
            rtol=1e-5,
            atol=1e-6,
        )


@pytest.mark.parametrize("words", [(), ("masked",), TASKS])
def test_a_step_learns(seen: ProcessedDataset, words: tuple[Any, ...]) -> None:
    model = cases.host(seen, dropout=0.1)
    step = TrainingStep(model, objective(words), sources=[cases.writer(seen, words=words)])
    losses = step(cases.batch_of(seen))
    torch.stack(list(losses.values())).sum().backward()
    assert losses["written"] > 0
    heads = {"masked": "fill", "doubt": "doubt", "correct": "correct"}
    for task, head in heads.items():
        own = [p.grad for n, p in model.named_parameters() if n.startswith(f"says.{head}.")]
        assert own
        assert all((g is not None) == (task in words) for g in own)


def test_the_same_seed_writes_the_same(seen: ProcessedDataset, batch: Batch, model: UNITER) -> None:
    found = [cases.proposed(cases.writer(seen), model, batch, s)[0].texts.values for s in (1, 1, 2)]
    assert torch.equal(found[0], found[1])
    assert found[0].shape != found[2].shape or not torch.equal(found[0], found[2])


def test_a_frozen_writer_teaches_a_model_that_reads_otherwise(seen: ProcessedDataset) -> None:
    words = seen.processor.tokenizer.words[4:]
    own = Processor(
        seen.processor.image_processor, WordTokenizer([*SPECIAL, "unused", *reversed(words)])
    ).process(seen.dataset)
    model = train_cases.Global(words=own.processor.tokenizer.size)
    filler = cases.host(seen)
    source = cases.writer(seen, filler=filler, model_inputs=own, words=())
    step = TrainingStep(model, objective(()), sources=[source])
    losses = step(cases.batch_of(own))
    losses["written"].backward()
    assert losses["written"] > 0
    assert model.word.weight.grad is not None
    assert all(p.grad is None for p in filler.parameters())
    proposal, _, _ = cases.proposed(source, model, cases.batch_of(own))
    same, _, _ = cases.proposed(
        cases.writer(seen, filler=filler, words=(), keep=20), cases.host(seen), cases.batch_of(seen)
    )
    every = {" ".join(seen.processor.tokenizer.tokens(row)) for row in same.texts.values.tolist()}
    told = [" ".join(own.processor.tokenizer.tokens(row)) for row in proposal.texts.values.tolist()]
    assert {text.replace("<pad>", "").strip() for text in told} <= {
        text.replace("<pad>", "").strip() for text in every
    }


def test_a_frozen_writer_may_share_the_lens(seen: ProcessedDataset) -> None:
    model, filler = cases.host(seen), cases.host(seen, outputs=("rank", "fill"))
    with torch.no_grad():
        for p in filler.parameters():
            p.mul_(-1.1)
    source = cases.writer(seen, filler=filler, words=TASKS)
    step = TrainingStep(model, objective(TASKS), sources=[source])
    losses = step(cases.batch_of(seen))
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is None for p in filler.parameters())


def test_strings_are_what_the_ids_say(seen: ProcessedDataset) -> None:
    batch, source = cases.batch_of(seen), cases.writer(seen)
    proposal, _, _ = cases.proposed(source, cases.host(seen), batch)
    rows, values = [], []
    for b, texts in written(proposal, batch).items():
        rows += [int(batch.text_rows[batch.anchors.text[b]])] * len(texts)
        values += texts
    strings = source.inputs.strings(rows, torch.stack(values))
    again = seen.processor.process_texts(strings)
    for text, ids, mask in zip(values, again.values, again.mask, strict=True):
        assert torch.equal(text[: int(mask.sum())], ids[mask])
    assert all(string[0].isupper() for string in strings)


def test_nothing_left_is_no_pair_and_no_error(seen: ProcessedDataset) -> None:
    """All words of the vocabulary occur in the captions, so that nothing may be false."""
    seen.dataset.texts[2] = " ".join(seen.processor.tokenizer.words[4:])
    seen = seen.processor.process(seen.dataset)
    batch, model = cases.batch_of(seen, [0, 1]), cases.host(seen)
    plain, _, _ = cases.proposed(cases.writer(seen), model, batch)
    assert plain.texts is None
    assert (plain.pairs[Role.WRITTEN].text == -1).all()
    step = TrainingStep(model, objective(TASKS), sources=[cases.writer(seen, words=TASKS)])
    losses = step(batch)
    assert losses["written"] == losses["doubt"] == losses["correct"] == 0
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "correct" in n)


def test_the_authors_positive(seen: ProcessedDataset, batch: Batch, model: UNITER) -> None:
    source = cases.writer(seen, StrayTailored, words=("doubt",))
    plain = cases.writer(seen, words=("doubt",))
    theirs, _, grid = cases.proposed(source, model, batch)
    ours, _, _ = cases.proposed(plain, model, batch)
    true = grid[batch.anchors.image, batch.anchors.text]
    moved = theirs.scores[Role.WRITTEN] - true[:, None]
    stray = ours.scores[Role.WRITTEN] - moved
    for b in range(len(cases.ANCHORS)):
        found = stray[b][stray[b].isfinite()]
        torch.testing.assert_close(found, found[:1].expand_as(found), rtol=1e-5, atol=1e-6)
        assert abs(found[0] - true[b]) > 1e-4


def test_the_authors_choice_keeps_copies(
    seen: ProcessedDataset, batch: Batch, model: UNITER
) -> None:
    candidate_filter = CandidateFilter(rules=(), choice="lowered scores")
    source = cases.writer(seen, candidate_filter=candidate_filter, keep=20, temperature=0.02)
    proposal, _, _ = cases.proposed(source, model, batch)
    texts = written(proposal, batch)
    assert all(len(some) == 20 for some in texts.values())
    assert any(len({tuple(t.tolist()) for t in some}) < 20 for some in texts.values())


def test_a_step_as_released(seen: ProcessedDataset) -> None:
    batch = cases.batch_of(seen)
    released = {"specials": True, "words": TASKS}
    candidate_filter = CandidateFilter(rules=(), choice="lowered logits")
    source = cases.writer(seen, StrayTailored, candidate_filter=candidate_filter, **released)
    losses = TrainingStep(cases.host(seen), objective(TASKS), sources=[source])(batch)
    assert all(loss.isfinite() and loss > 0 for loss in losses.values())


def test_half_precision(seen: ProcessedDataset) -> None:
    source = cases.writer(seen, words=TASKS)
    step = TrainingStep(cases.host(seen), objective(TASKS), sources=[source], precision="bf16")
    losses = step(cases.batch_of(seen))
    torch.stack(list(losses.values())).sum().backward()
    assert losses["written"] > 0


def test_a_caption_of_unknown_words(seen: ProcessedDataset) -> None:
    seen.dataset.texts[0] = "Xyzzy"
    seen = seen.processor.process(seen.dataset)
    batch = cases.batch_of(seen)
    source = cases.writer(seen, singles="only", words=TASKS)
    proposal, _, _ = cases.proposed(source, cases.host(seen), batch)
    assert proposal.scores[Role.WRITTEN][0].isneginf().all()
    assert proposal.scores[Role.WRITTEN][1].isfinite().any()


class BeginsBefore:
    """Takes every caption for true that begins with a letter before another one."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def is_true(self, images: torch.Tensor, rows: torch.Tensor, told: list[str]) -> torch.Tensor:
        assert len(images) == len(rows) == len(told)
        return torch.tensor([text[0].lower() < self.letter for text in told])


def test_one_of_several_judges_is_enough(
    seen: ProcessedDataset, batch: Batch, model: UNITER
) -> None:
    judges = [BeginsBefore("c"), BeginsBefore("m")]
    source = cases.writer(seen, candidate_filter=CandidateFilter(opinion=judges))
    proposal, _, _ = cases.proposed(source, model, batch)
    texts = written(proposal, batch)
    assert sum(map(len, texts.values()))
    for b, some in texts.items():
        row = int(batch.text_rows[batch.anchors.text[b]])
        strings = source.inputs.strings([row] * len(some), torch.stack(some)) if some else []
        assert all(text[0].lower() >= "m" for text in strings)


def test_what_cannot_be(seen: ProcessedDataset) -> None:
    with pytest.raises(ValueError, match="masks=0 is not possible"):
        cases.writer(seen, masks=0)
    with pytest.raises(ValueError, match="temperature=0"):
        cases.writer(seen, temperature=0.0)
    with pytest.raises(ValueError, match="'maskd' is not a word task"):
        cases.writer(seen, words=("maskd",))
    other = ProcessorConfig(min_count=9).fit(seen.dataset).process(seen.dataset)
    with pytest.raises(ValueError, match="'filler', so the model learns no words from what that"):
        cases.writer(seen, filler=cases.host(seen), model_inputs=other)
    with pytest.raises(ValueError, match="'captain' is not a rule"):
        CandidateFilter(rules=("captain",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the authors' form"):
        CandidateFilter(choice="lowered logits")
    with pytest.raises(ValueError, match="the model Global does not read words"):
        cases.writer(seen).check(train_cases.Global(words=9), seen.dataset)
    writer = cases.writer(seen, words=TASKS)
    with pytest.raises(ValueError, match="has no heads for correct, doubt"):
        writer.check(cases.host(seen, outputs=("rank", "fill")), seen.dataset)


@pytest.fixture
def pieces(tmp_path: Path) -> ProcessedDataset:
    """A lens whose words fall into pieces."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
    things = [thing.removesuffix("s") for thing in cases.THINGS]
    said = [*special, *cases.COLOURS, *things, *cases.RELATIONS, "##s", "##es"]
    ids = {word: number for number, word in enumerate(said)}
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    model.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    model.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder = tmp_path / "bert"
    transformers.BertTokenizerFast(tokenizer_object=model).save_pretrained(folder)
    seen = cases.processor()
    return Processor(seen.processor.image_processor, WordPieceTokenizer(str(folder))).process(
        seen.dataset
    )


def test_all_pieces_of_a_phrase_are_hidden(pieces: ProcessedDataset) -> None:
    source = cases.writer(pieces)
    assert source.inputs.words[0] == 6, "no special token and no unused one is written"
    rows = torch.tensor(cases.ANCHORS)
    texts = pieces.texts(rows)
    phrases = source.inputs.phrases(rows, texts.values.shape[1])
    ends = {
        pieces.processor.tokenizer.tokens([n])[0]: n for n in range(pieces.processor.tokenizer.size)
    }
    for values, some in zip(texts.values, phrases, strict=True):
        for place in (values == ends["##s"]).nonzero().flatten().tolist():
            holds = some[:, place]
            assert holds.any()
            assert torch.equal(some[holds][:, place - 1], some[holds][:, place])


def test_pieces_are_written_for_a_model_of_words(pieces: ProcessedDataset) -> None:
    batch, filler = cases.batch_of(pieces), cases.host(pieces, mask=4)
    same, _, _ = cases.proposed(cases.writer(pieces), filler, batch)
    assert same.texts.values.max() < pieces.processor.tokenizer.size
    own = cases.processor()
    model = train_cases.Global(words=own.processor.tokenizer.size)
    source = cases.writer(pieces, filler=filler, model_inputs=own, words=())
    losses = TrainingStep(model, objective(()), sources=[source])(cases.batch_of(own))
    assert losses["written"] > 0


def test_pieces_of_a_batch_give_the_gradient_of_the_whole() -> None:
    seen, found = cases.processor(), []
    for chunk in (0, 2):
        model = cases.host(seen)
        source = cases.writer(seen, words=TASKS)
        step = TrainingStep(model, objective(TASKS), sources=[source])
        if chunk:
            train_cases.cached_backward(step, cases.batch_of(seen), chunk)
        else:
            torch.stack(list(step(cases.batch_of(seen)).values())).sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        assert (gradient is None) == (found[1][name] is None), name
        if gradient is not None:
            torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("words", [("masked",), TASKS])
def test_anchors_of_the_other_stream_get_nothing(seen, batch, model, words):
    """Captions are generated for those whose candidates are images, as in the authors' code."""
    none, some = torch.full((5, 2), -1), torch.zeros(5, 2, dtype=torch.long)
    of_images = torch.tensor([True, False, True, False, True])
    pairs = {
        Role.HARD_IMAGE: Pairs(some.where(of_images[:, None], none), some),
        Role.HARD_TEXT: Pairs(some, some.where(~of_images[:, None], none)),
    }
    streams = replace(batch, candidates=pairs)
    assert written_anchors(streams).tolist() == [0, 2, 4]
    assert written_anchors(batch).tolist() == [0, 1, 2, 3, 4]
    found = cases.proposed(cases.writer(seen, words=words), model, streams)[0]
    for task in found.words.values():
        assert set(task.anchor.tolist()) <= {0, 2, 4}
    assert set(found.words["masked"].anchor.tolist()) == {0, 2, 4}
    if words == TASKS:
        counts = found.scores[Role.WRITTEN].isfinite().sum(1)
    else:
        counts = (found.pairs[Role.WRITTEN].text >= 0).sum(1)
    assert (counts > 0).tolist() == of_images.tolist()
    image, text = batch.anchors.image[of_images], batch.anchors.text[of_images]
    alone = replace(batch, anchors=Pairs(image, text))
    same = cases.proposed(cases.writer(seen, words=words), model, alone)[0]
    assert torch.equal(found.words["masked"].logits, same.words["masked"].logits)
