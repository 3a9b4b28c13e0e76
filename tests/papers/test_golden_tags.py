"""TAGS and TAGS-DC against vectors of the authors' code. Every key that the folder holds is run."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
import uniter_cases
from counterfoil.core.types import (
    ModalityBatch,
    Role,
    ScoreMatrix,
    Scores,
    WordHead,
    WordSlots,
    WordTask,
)
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.models.layers.joint_encoder import with_derived_heads
from counterfoil.papers.models.uniter import convert_uniter
from counterfoil.papers.tags.generation import (
    fill_slots,
    refill_probabilities,
    word_tasks,
)
from counterfoil.papers.tags.inputs import (
    choose_spans,
    copies_original,
    hardest_allowed,
    is_true_caption,
    mask_probabilities,
    mask_spans,
    mask_table,
    occurs_in_captions,
    penalise_copies,
    repeated_captions,
    with_singles,
)
from counterfoil.papers.tags.losses import WordLoss
from counterfoil.papers.tags.scoring import PairInputs, read_in_parts, score_in_parts
from papers.released_bugs import stray

SYSTEM = "tags"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
NAMES = {  # theirs to ours
    "rank_output.weight": "says.rank.weight",
    "rank_output.bias": "says.rank.bias",
    "disc_output.weight": "says.doubt.weight",
    "disc_output.bias": "says.doubt.bias",
    "uniter.pooler.dense.weight": "pooler.weight",
    "uniter.embeddings.word_embeddings.weight": "text.word_embeddings.weight",
    "cls.predictions.transform.dense.weight": "says.fill.enter.0.weight",
    "correction_output.predictions.transform.dense.weight": "says.correct.enter.0.weight",
    "correction_output.predictions.bias": "says.correct.bias",
}


class Case:
    """One positive on its way from masks to losses, with the authors' masks and drawn words."""

    def __init__(self) -> None:
        self.golden = golden_scores.load(SYSTEM)
        self.inputs, self.config = self.golden.inputs, self.golden.meta["config"]
        self.model = uniter_cases.build(SYSTEM)
        caption = self.inputs["anchor/caption"]
        self.text = uniter_cases.captions(SYSTEM, caption)
        width = self.inputs["anchor/input_ids"].shape[1]
        self.text = ModalityBatch(
            self.text.ids, self.text.values[:, :width], self.text.mask[:, :width]
        )
        assert torch.equal(self.text.values, self.inputs["anchor/input_ids"])
        image = self.inputs["caption_image"][caption]
        self.image = self.model.encode_images(uniter_cases.images(SYSTEM, image))
        self.hidden = (self.inputs["mlm/labels"] >= 0).unsqueeze(0)
        self.slots = WordSlots(*self.hidden[0].nonzero(as_tuple=True))
        self.labels = self.inputs["mlm/labels"][self.hidden[0]]
        drawn = self.inputs["fill/sampled_tokens"][self.slots.pair, self.slots.place]
        self.written = fill_slots(self.inputs["mlm/input_ids"], self.slots, drawn)

    def shown(self, values: Tensor) -> PairInputs:
        rows = torch.zeros(len(values), dtype=torch.long)
        return PairInputs(self.image, ModalityBatch(rows - 1, values, self.text.mask[rows]), rows)

    @property
    def copy(self) -> Tensor:
        return copies_original(self.written[None], self.text.values)

    @property
    def again(self) -> Tensor:
        return repeated_captions(self.written[None])

    def masked(self) -> WordTask:
        shown = self.shown(self.inputs["mlm/input_ids"])
        logits = read_in_parts(self.model, shown, frozenset({WordHead.FILL}), self.slots).fill
        return WordTask(logits, self.labels, torch.zeros_like(self.labels))

    def all_words(self) -> tuple[dict[str, WordTask], Tensor]:
        """The tasks of all candidates, as theirs are."""
        count = len(self.written)
        anchor = torch.zeros(count, dtype=torch.long)
        slots = self.hidden[anchor, torch.arange(count) // (count // self.config["K"])]
        scores, tasks = word_tasks(
            self.model, self.shown(self.written), anchor, slots, self.text, ("doubt", "correct")
        )
        return tasks, scores

    def chosen(self, scores: Tensor) -> Tensor:
        low = penalise_copies(scores[None], self.copy, self.again)
        return hardest_allowed(low, torch.ones_like(low).bool(), self.config["m"])[0]

    def scores(self) -> Tensor:
        return score_in_parts(self.model, self.shown(self.written))

    def positive(self, form: str) -> Tensor:
        texts = self.model.encode_texts(self.text)
        if form == "released":
            return stray(self.model, self.image, texts)
        return self.model.score_pairs(self.image, texts)

    def ranked(self, form: str) -> tuple[Tensor, Tensor, Tensor]:
        """The positive and the chosen, their scores again with gradients, and the loss."""
        rows = self.chosen(self.scores())
        shown = self.shown(self.written[rows])
        texts = self.model.encode_texts(shown.texts)
        wrong = self.model.score_pairs(self.image.rows(shown.image), texts)
        true = self.positive(form)
        grid = grid_of(true.sigmoid())
        term = MarginRankingLoss(role="written", margin=self.config["margin"])
        loss = term(Scores({"inference": grid}, {Role.WRITTEN: wrong.sigmoid()[None]}))
        return rows, torch.cat([true, wrong]), loss

    def task_loss(self, name: str, task: WordTask) -> Tensor:
        weights = self.config["disc_weights_mismatch_match"] if name == "doubt" else ()
        term = WordLoss(task=name, weights=tuple(weights))
        return term(Scores({"inference": grid_of(torch.zeros(1))}, words={name: task}))


@golden_vectors.cached
def case() -> Case:
    return Case()


def grid_of(anchor: Tensor) -> ScoreMatrix:
    return ScoreMatrix(anchor[None], torch.ones(1, 1, dtype=torch.bool), anchor)


def costs(name: str, task: WordTask) -> Tensor:
    weights = case().config["disc_weights_mismatch_match"] if name == "doubt" else ()
    return WordLoss(task=name, weights=tuple(weights)).costs(task)


def gradient(loss: Tensor, theirs: str) -> Tensor:
    """Of the parameter that they call so."""
    own = dict(case().model.named_parameters())[NAMES[theirs]]
    return torch.autograd.grad(loss, own)[0]


def masked(key: str) -> Tensor:
    task = case().masked()
    if key == "slot_probs":
        return refill_probabilities(task.logits, temperature=case().config["tau"])
    if key == "corrects":
        return (task.logits.argmax(1) == task.labels).float()
    return {"slot_logits": task.logits, "loss": costs("masked", task)}[key]


def selected(key: str) -> Tensor:
    """On given scores, row 0 of which is the positive's."""
    scores = case().inputs["select/raw_scores"][1:][None]
    copy, again = case().copy, case().again
    if key == "effective_number":
        return effective()
    if key == "exact_rows":
        order = hardest_allowed(scores, ~copy, scores.shape[1])[
            0
        ]  # equal captions have other scores here
        order = order[order >= 0]
        return order[~repeated_captions(case().written[order.flip(0)][None])[0].flip(0)]
    rows = hardest_allowed(penalise_copies(scores, copy, again), torch.ones_like(copy), 10**3)[0]
    return rows[: len(case().golden.outputs["select/released_rows"])]


def effective() -> Tensor:
    """The positive is a row of theirs, and a copy of itself."""
    return (~(case().copy | case().again)).sum().view(1)


def ranked(form: str, key: str) -> Tensor:
    one = case()
    if key == "effective_number":
        return effective()
    if key == "all_scores":
        return torch.cat([one.positive(form), one.scores()])
    rows, scores, loss = one.ranked(form)
    true, wrong = scores.sigmoid()[:1], scores.sigmoid()[1:]
    whole = one.config["lambdas"]["istm"] * loss
    whole = whole + one.config["lambdas"]["mlm"] * costs("masked", one.masked()).mean()
    if key.startswith("grad_weighted/"):
        return gradient(whole, key.removeprefix("grad_weighted/"))
    return {
        "selected_input_ids": torch.cat([one.text.values, one.written[rows]]),
        "selected_scores": scores,
        "rank_loss": (one.config["margin"] - true + wrong).clamp(min=0),
        "rank_corrects": (wrong <= true).float(),
        "loss": loss,
        "weighted_mlm_plus_istm": whole,
    }[key]


def pool(key: str) -> Tensor:
    assert key == "exact_rows"
    one = case()
    return hardest_allowed(one.scores()[None], ~(one.copy | one.again), one.config["m"])[0]


def doubted(key: str) -> Tensor:
    one = case()
    task = one.all_words()[0]["doubt"]
    size = one.written.shape
    right = task.logits.argmax(1) == task.labels
    matched = task.labels == 1
    return {
        "logits": task.logits.view(*size, 2),
        "prob": task.logits.softmax(1).view(*size, 2),
        "token_loss": costs("doubt", task).view(size),
        "loss": one.task_loss("doubt", task),
        "labels": task.labels.view(size),
        "disc_pos_corrects": (right & matched).sum().view(1),
        "disc_pos_samples": matched.sum().view(1),
        "disc_neg_corrects": (right & ~matched).sum().view(1),
        "disc_neg_samples": (~matched).sum().view(1),
    }[key]


def corrected(key: str) -> Tensor:
    one = case()
    if key in ("argmax_all_tokens", "all_token_corrects", "corrected_text"):
        pair, place = torch.ones_like(one.written).nonzero(as_tuple=True)
        want = frozenset({WordHead.CORRECT})
        logits = read_in_parts(
            one.model, one.shown(one.written), want, WordSlots(pair, place)
        ).correct
        best = logits.argmax(1).view(one.written.shape)
        if key == "all_token_corrects":
            return (best == one.text.values)[:, 1:-1]
        kept = one.written == one.text.values
        return best if key == "argmax_all_tokens" else torch.where(kept, one.written, best)
    task = one.all_words()[0]["correct"]
    return {
        "slot_logits": task.logits,
        "slot_loss": costs("correct", task),
        "slot_corrects": task.logits.argmax(1) == task.labels,
        "loss": one.task_loss("correct", task),
    }[key]


def together(key: str) -> Tensor:
    one = case()
    tasks, weights = one.all_words()[0], one.config["lambdas"]
    loss = weights["wod"] * one.task_loss("doubt", tasks["doubt"])
    loss = loss + weights["woc"] * one.task_loss("correct", tasks["correct"])
    if key == "weighted_loss":
        return loss
    return gradient(loss, key.removeprefix("grad_weighted/"))


def begin(key: str) -> Tensor:
    """What their `init_output` makes of this state, whose trained heads it throws away."""
    heads = ("rank_output", "disc_output", "correction_output")
    given = golden_scores.checkpoint(SYSTEM).state
    bare = {name: value for name, value in given.items() if not name.startswith(heads)}
    return with_derived_heads(convert_uniter(bare))[NAMES[key]]


def ours(key: str) -> Tensor:
    part, _, rest = key.partition("/")
    if part == "istm":
        return ranked(*rest.split("/", 1))
    if part == "fill":
        assert rest == "candidates"
        return case().written
    return {
        "mlm": masked,
        "select": selected,
        "pool": pool,
        "wod": doubted,
        "woc": corrected,
        "wodwoc": together,
        "init": begin,
    }[part](rest)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_as_the_authors(key: str) -> None:
    golden, found = case().golden, ours(key)
    if not golden.exact(key):
        golden_scores.agrees(golden, key, found)
        return
    theirs = golden.outputs[key].long()
    if key in ("pool/exact_rows", "select/exact_rows"):  # any row of the same sentence will do
        found, theirs = case().written[found], case().written[theirs]
    assert torch.equal(found.long(), theirs)


def test_copies_and_repeats_are_there() -> None:
    one = case()
    assert one.copy.any()
    assert (one.again & ~one.copy).any()
    rows = hardest_allowed(one.scores()[None], ~(one.copy | one.again), one.config["m"])[0]
    assert not one.copy[0, rows].any()


def examples() -> dict[str, Any]:
    return json.loads((golden_vectors.folder(SYSTEM) / "filter_examples.json").read_text())


def test_the_papers_rule() -> None:
    given = examples()
    captions = [torch.tensor(words) for words in given["captions_of_image"]]
    ids = torch.nn.utils.rnn.pad_sequence(captions, batch_first=True, padding_value=-1)
    largest = 1 + max(max(e["candidate"]) for e in given["examples"])
    size = 1, max(largest, 1 + int(ids.max()))
    there = occurs_in_captions(
        ids.clamp(min=0), ids >= 0, torch.zeros(len(ids), dtype=torch.long), size
    )
    for example in given["examples"]:
        written = torch.tensor(example["candidate"])[None, None]
        keep = not is_true_caption(written, captions[0][None], there).item()
        assert keep == example["keep"], example["why"]


def mask_cases() -> list[dict[str, Any]]:
    folder = golden_vectors.folder(SYSTEM)
    return json.loads((folder / "phrase_mask.json").read_text())["cases"] if folder else [{}]


def phrases_of(given: dict[str, Any]) -> Tensor:
    tree, length = given["tree"], given["n_tokens"]
    names = ("relation", "attribute", "node")
    some = [phrase for name in names for phrase in tree[name] if phrase is not None]
    words = torch.ones(1, length, dtype=torch.bool)
    singles = "always" if given["kind"] == "eval" else "without phrases"
    return with_singles(mask_table([some], length), words, singles=singles)


@pytest.mark.parametrize("given", mask_cases(), ids=lambda given: str(given.get("n_tokens")))
def test_phrases_are_hidden_as_often_as_theirs(given: dict[str, Any]) -> None:
    exact, phrases = given["exact"], phrases_of(given)
    q = mask_probabilities(phrases)[0]
    real = phrases[0].any(1)
    assert sorted(q[real].tolist()) == pytest.approx(sorted(exact["phrase_prob"]))
    times = 200_000
    slots = choose_spans(phrases, times=times, rng=torch.Generator().manual_seed(1))[0]
    counts = torch.bincount(slots.sum(1), minlength=given["n_tokens"] + 1).double() / times
    for found, wanted in (
        (slots.double().mean(0), exact["slot_prob"]),
        (counts, exact["slot_count_prob"]),
    ):
        wanted = torch.tensor(wanted, dtype=torch.double)
        spread = (wanted * (1 - wanted) / times).sqrt()
        assert ((found - wanted).abs() <= 5 * spread + 1e-12).all()
    none = 1 - (1 - q).prod()
    assert none.item() == pytest.approx(1 - exact["forced_prob"])


def test_what_happens_to_a_slot() -> None:
    given = json.loads((golden_vectors.folder(SYSTEM) / "phrase_mask.json").read_text())
    chance, words = given["cases"][0]["exact_kind_prob"], torch.arange(*given["v_range"])
    times, old = 100_000, int(words[5])
    text = ModalityBatch(torch.zeros(1).long(), torch.tensor([[old]]), torch.ones(1, 1).bool())
    slots = torch.ones(1, times, 1, dtype=torch.bool)
    rng = torch.Generator().manual_seed(0)
    found = mask_spans(text, slots, mask=given["mask_id"], words=words, rng=rng).texts.values
    for wanted, share in (
        (chance["mask"], (found == given["mask_id"]).double().mean()),
        (chance["unchanged"], (found == old).double().mean()),
    ):
        assert abs(wanted - share.item()) < 5 * (wanted * (1 - wanted) / times) ** 0.5
