"""LightningDOT (https://github.com/intersun/LightningDOT, a597f3f). Every key of each folder."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, normalize

import golden_scores
import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch, ScoreMatrix, Scores
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.papers.models.lightningdot import (
    KINDS,
    VEIL,
    LightningDOT,
    lightningdot_from_checkpoint,
    lightningdot_name,
)

SYSTEM = "lightningdot"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


class Case:
    """A folder: its model, its items, and our value for each of its outputs."""

    def __init__(self) -> None:
        self.golden = golden_scores.load(SYSTEM)
        self.inputs, self.config = self.golden.inputs, self.golden.meta["config"]
        self.state = dict(golden_scores.checkpoint(SYSTEM).state)

    def model(self, *, fusion: str = "none") -> LightningDOT:
        sizes = {"heads": self.config["heads"], "mask": self.config["MASK"]}
        given = golden_scores.checkpoint(SYSTEM, first=self.config["CLS"], **sizes)
        built = lightningdot_from_checkpoint(given).build()
        assert isinstance(built, LightningDOT)
        built.fusion = fusion
        return built

    def framed(self, words: Tensor, lengths: Tensor) -> ModalityBatch:
        """[CLS] words [SEP], as long as the longest."""
        long = int(lengths.max())
        full = torch.zeros(len(words), long + 2, dtype=torch.long)
        full[:, 0], full[:, 1:-1] = self.config["CLS"], words[:, :long]
        mask = torch.arange(long + 2) < (lengths + 2).unsqueeze(1)
        full[torch.arange(len(words)), lengths + 1] = self.config["SEP"]
        return ModalityBatch(torch.arange(len(words)), full.masked_fill(~mask, 0), mask)

    def texts(self, rows: Tensor, words: Tensor | None = None) -> ModalityBatch:
        words = self.inputs["caption_ids"][rows] if words is None else words
        return self.framed(words, self.inputs["caption_lens"][rows])

    def images(self, rows: Tensor) -> ModalityBatch:
        counts = self.inputs["num_bb"][rows]
        mask = torch.arange(int(counts.max())) < counts.unsqueeze(1)
        values, boxes = (
            self.inputs[name][rows][:, : mask.shape[1]] for name in ("region_feat", "region_box")
        )
        return ModalityBatch(rows, values, mask, boxes[..., :4])

    def generated(self, rows: Tensor) -> ModalityBatch:
        """[CLS] s1 [SEP] s2 [SEP] of the captions that were generated of images."""
        end, ids, lengths = (
            self.config["SEP"],
            *(self.inputs[name][rows] for name in ("generated_ids", "generated_lens")),
        )
        lines = [
            [
                self.config["CLS"],
                *(i for row, n in zip(one, many, strict=True) for i in [*row[:n].tolist(), end]),
            ]
            for one, many in zip(ids, lengths.tolist(), strict=True)
        ]
        longest = max(map(len, lines))
        values = torch.tensor([line + [0] * (longest - len(line)) for line in lines])
        mask = torch.arange(longest) < torch.tensor([[len(line)] for line in lines])
        return ModalityBatch(rows, values, mask)

    def pairs(self) -> tuple[Tensor, Tensor]:
        return self.inputs["pairs/image"], self.inputs["pairs/caption"]

    def with_hard(self) -> tuple[Tensor, Tensor]:
        """Images and captions of the pairs, then their hard negatives."""
        return tuple(
            torch.cat([own, self.inputs[name].flatten()])
            for own, name in zip(self.pairs(), ("hard/images", "hard/captions"), strict=True)
        )

    def authors(self, model: LightningDOT, name: str) -> Tensor:
        """Gradient of the parameter that the authors call so, in their shape."""
        plain = name.removeprefix("bert.")
        grads = {ours: p.grad for ours, p in model.named_parameters()}
        if plain in (KINDS, VEIL):  # of whose rows two are read, or one
            table = torch.zeros_like(self.state[name])
            if plain == KINDS:
                table[0] = grads["image.embed.kind"]
            part = "kind" if plain == KINDS else "veil"
            table[1] = grads[f"image.embed.regions.{part}"]
            return table
        if found := re.fullmatch(r"(.+)\.(query|key|value)\.(weight|bias)", plain):
            side, number = re.match(r"(img|txt)_model\.bert\.encoder\.layer\.(\d+)", plain).groups()
            side = {"img": "image", "txt": "text"}[side]
            whole = grads[f"{side}.body.layers.{number}.enter.{found[3]}"]
            return whole.chunk(3)[("query", "key", "value").index(found[2])]
        return grads[lightningdot_name(plain)]

    # outputs

    def ours(self, key: str) -> Tensor:
        room, _, what = key.partition("/")
        if room == "pre":
            return self.pretraining(what)
        if room.startswith("loss_"):
            return self.loss(room.removeprefix("loss_"), what)
        rooms = {"batch_hard": self.batch, "forward": self.forward, "eval": self.evaluated}
        assert room in rooms, f"the golden folder has {key!r}, which no test understands"
        return rooms[room](what)

    def batch(self, what: str) -> Tensor:
        """Their collated batch, from our items."""
        kind, name = what.split("/")
        images, captions = self.with_hard()
        if kind == "imgs":
            items = self.images(images)
            boxes = self.inputs["region_box"][images][:, : items.mask.shape[1]]
            place = torch.cat([boxes, (boxes[..., 4] * boxes[..., 5]).unsqueeze(2)], 2)
            mask = torch.cat([torch.ones(len(images), 1), items.mask], 1).long()
            return {
                "input_ids": torch.full((len(images), 1), self.config["CLS"]),
                "position_ids": torch.zeros(1, 1, dtype=torch.long),
                "attention_mask": mask,
                "img_feat": items.values,
                "img_pos_feat": place.masked_fill(~items.mask.unsqueeze(2), 0),
                "gather_index": torch.arange(mask.shape[1]).expand(mask.shape),
            }[name]
        items = self.texts(captions) if kind == "txts" else self.generated(images)
        return {
            "input_ids": items.values,
            "position_ids": torch.arange(items.mask.shape[1]).unsqueeze(0),
            "attention_mask": items.mask.long(),
        }[name]

    def forward(self, what: str) -> Tensor:
        images, captions = self.pairs()
        model, seen, read = self.model(), self.images(images), self.texts(captions)
        if what == "image_embeddings":
            found = model.image.embed(seen)
            return found.tokens.masked_fill(~found.mask.unsqueeze(2), 0)
        side, _, kind = what.partition("_")
        tower, items = (model.text, read) if side == "text" else (model.image, seen)
        states = tower.states(items).tokens
        return {
            "hidden": lambda: states,
            "cls": lambda: states[:, 0],
            "vec": lambda: tower(items).tokens[:, 0],
        }[kind]()

    def every(self, model: LightningDOT) -> tuple[Embeddings, Embeddings]:
        counts = (torch.arange(len(self.inputs[n])) for n in ("num_bb", "caption_lens"))
        images, captions = counts
        return (
            model.encode_images(self.images(images)),
            model.encode_texts(self.texts(captions)),
        )

    def evaluated(self, what: str) -> Tensor:
        model = self.model()
        images, texts = self.every(model)
        scores = model.score_matrix(images, texts).T
        if what.startswith("grad/"):
            (scores * self.inputs["score_weights"]).sum().backward()
            return self.authors(model, what.removeprefix("grad/"))
        if found := re.fullmatch(r"recall_(text_to_image|image_to_text)", what):
            return self.recall(scores, found[1])
        return {
            "text_vecs": lambda: texts.tokens[:, 0],
            "image_vecs": lambda: images.tokens[:, 0],
            "scores": lambda: scores,
            "cosine_scores": lambda: (
                normalize(texts.tokens[:, 0], dim=1) @ normalize(images.tokens[:, 0], dim=1).T
            ),
        }[what]()

    def recall(self, scores: Tensor, direction: str) -> Tensor:
        true = self.inputs["caption_image"].unsqueeze(1) == torch.arange(scores.shape[1])
        if direction == "image_to_text":
            scores, true = scores.T, true.T
        best = scores.masked_fill(~true, -torch.inf).amax(1, keepdim=True)
        rank = (scores > best).sum(1)
        return torch.stack([(rank < k).float().mean() for k in (1, 5, 10)])

    def loss(self, kind: str, what: str) -> Tensor:
        model = self.model()
        images, captions = self.with_hard() if kind == "hard" else self.pairs()
        vectors = {
            "images": model.encode_images(self.images(images)),
            "texts": model.encode_texts(self.texts(captions)),
        }
        for one in vectors.values():
            one.tokens.retain_grad()
        count = len(self.inputs["pairs/image"])
        scores = model.score_matrix(vectors["images"], vectors["texts"])
        by_image, by_text = scores[:count], scores.T[:count]
        if kind == "caption":
            weight = self.config["caption_weight"]
            told = model.encode_texts(self.generated(images)).tokens[:, 0]
            if what == "caption_vecs":
                return told
            by_image, by_text = (
                (1 - weight) * plain + weight * (vectors[name].tokens[:, 0] @ told.T)
                for plain, name in ((by_image, "images"), (by_text, "texts"))
            )
        own = torch.arange(count)
        costs = {
            "image_to_text": cross_entropy(by_image, own),
            "text_to_image": cross_entropy(by_text, own),
        }
        loss = sum(costs.values()) / 2
        if kind != "caption":  # hard negatives are pairs of the block that are true of none
            positive = torch.zeros_like(scores, dtype=torch.bool)
            positive[own, own] = True
            grid = ScoreMatrix(scores, positive, scores[own, own])
            loss = InfoNCELoss(temperature=1.0, reduction="mean")(Scores({"inference": grid}))
        if what == "loss":
            return loss
        if what.startswith("grad"):
            loss.backward()
            if found := re.fullmatch(r"grad_(text|image)_vecs", what):
                return vectors[f"{found[1]}s"].tokens.grad[:, 0]
            return self.authors(model, what.removeprefix("grad/"))
        name, direction = re.fullmatch(
            r"(scores|loss|correct)_(image_to_text|text_to_image)", what
        ).groups()
        found = by_image if direction == "image_to_text" else by_text
        return {
            "scores": found,
            "loss": costs[direction],
            "correct": (found.argmax(1) == own).sum(),
        }[name]

    def pretraining(self, what: str) -> Tensor:
        masked = self.inputs["mrm/region_mask"].bool()
        images, captions = self.pairs()
        if what == "mrfr_target":
            return self.inputs["region_feat"][images][masked]
        if what.startswith("itm/"):
            model = self.model()
            seen, read = self.images(images), self.texts(captions)
            scores = model.score_matrix(model.encode_images(seen), model.encode_texts(read))
            own = torch.arange(len(scores))
            loss = (
                cross_entropy(scores, own, reduction="none")
                + cross_entropy(scores.T, own, reduction="none")
            ) / 2
            return self._or_gradient(model, loss, loss, what.removeprefix("itm/"))
        fusion, task, name = what.split("/", 2)
        model = self.model(fusion=fusion)
        seen = self.images(images)
        veiled = masked[:, : seen.mask.shape[1]]
        if task == "mlm":
            labels = self.inputs["mlm/labels"]
            read = self.texts(captions, self.inputs["mlm/masked_ids"])
            places = torch.zeros_like(read.mask)
            places[:, 1:-1] = (labels >= 0)[:, : places.shape[1] - 2]
            logits = model.filled(seen, read, places)
            loss = cross_entropy(logits, labels[labels >= 0], reduction="none")
            return self._or_gradient(model, logits, loss, name)
        read = self.texts(captions)
        if task == "mrfr":
            found = model.regressed(seen, read, veiled)
            loss = (found - self.inputs["region_feat"][images][masked]).square()
            return self._or_gradient(model, found, loss, name)
        logits = model.classified(seen, read, veiled)
        soft = self.inputs["soft_labels"][images][masked]
        if task == "mrckl":
            likely = logits.log_softmax(1)
            loss = kl_div(likely, soft, reduction="none")
            return self._or_gradient(model, likely, loss, name)
        loss = cross_entropy(logits, soft[:, 1:].argmax(1) + 1, reduction="none")
        return self._or_gradient(model, logits, loss, name)

    def _or_gradient(self, model: LightningDOT, found: Tensor, loss: Tensor, what: str) -> Tensor:
        if what.startswith("grad_mean_loss/"):
            loss.mean().backward()
            return self.authors(model, what.removeprefix("grad_mean_loss/"))
        return {"loss": loss, "loss_mean": loss.mean()}.get(what, found)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    case = Case()
    golden_scores.agrees(case.golden, key, case.ours(key).view(case.golden.outputs[key].shape))


def test_fine_tuned_and_pre_trained_files_are_one_model(tmp_path):
    """As in flickr-ft.pt: without the heads, the names without "bert.", beside the optimiser's."""
    from counterfoil.papers.models.convert import convert_checkpoint

    case = Case()
    inner = {
        name.removeprefix("bert."): value
        for name, value in case.state.items()
        if name.startswith("bert.")
    }
    saved = {"model_dict": inner, "optimizer_dict": {}, "offset": 3, "encoder_params": None}
    saved["opt"] = {"heads": case.config["heads"]}
    torch.save(saved, tmp_path / "flickr-ft.pt")
    found = convert_checkpoint(tmp_path / "flickr-ft.pt", "lightningdot").build()
    assert isinstance(found, LightningDOT)
    assert not found.says
    texts = case.texts(torch.arange(2))
    with pytest.raises(ValueError, match="no head 'fill'"):
        found.filled(case.images(torch.arange(2)), texts, texts.mask)
    whole = case.model()
    begun = whole.adopted(found.state_dict())
    assert begun.keys() == whole.state_dict().keys()
    assert all(torch.equal(begun[name], value) for name, value in whole.state_dict().items())


def test_another_system_is_refused():
    from counterfoil.models.checkpoints import Checkpoint

    with pytest.raises(ValueError, match=r"this LightningDOT checkpoint has no 'image\.embed"):
        lightningdot_from_checkpoint(Checkpoint({"uniter.pooler.dense.weight": torch.zeros(1)}))
