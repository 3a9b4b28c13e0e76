"""What a user gets back prints as a person would read it: short, in words, without tensors."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import counterfoil as cf
import recipes_cases
from counterfoil.core.console import Lines
from counterfoil.evaluation.explain import (
    CorrectedCaption,
    ExplainedWord,
    Explanation,
    WordCorrection,
)
from counterfoil.evaluation.foils.measures import measure_foils, score_foils
from counterfoil.evaluation.foils.sets import open_foil_set
from counterfoil.search.index import SearchHit, search_dataset

WORDS = ["a red circle", "two stars"]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.words = nn.Linear(3, 4), nn.Embedding(50, 4)

    def encode_image(self, pixels):
        return self.image(pixels)

    def encode_text(self, ids):
        return self.words(ids).mean(1)


def mean_colour(picture):
    return torch.tensor(picture.resize((1, 1)).getpixel((0, 0))) / 255


def lengths(captions):
    return [[len(caption) % 50] for caption in captions]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("printing")
    data = cf.load_dataset("scenes:images=24")
    model = cf.load_model(recipes_cases.pixel_model(folder / "m"))
    negatives = cf.mine_hard_negatives(model, data["train"], texts_per_image=5, images_per_text=3)
    index = cf.build_index(model, data["test"], folder / "index")
    foils = open_foil_set(["scenes:images=24"])
    trainer = cf.Trainer(
        model,
        loss=cf.losses.AdaptiveQuintuplet(),
        train=data["train"],
        dev=data["dev"],
        sources=cf.Mined(negatives),
        output=folder / "run",
        epochs=1,
    )
    picture = data["test"].pictures.open(0)
    return SimpleNamespace(**locals())


def own(made):
    return cf.Model(Towers(), preprocess=mean_colour, tokenize=lengths, name="mine-v1")


CASES = {  # what is made of the fixture, and words that it prints
    "data": (lambda m: m.data, "'scenes', all: 24 images and 120 texts; train 16, dev 4, test 4"),
    "split": (lambda m: m.data["test"], "'scenes', test: 4 images and 20 texts.$"),
    "features": (
        lambda _: (
            cf.load_dataset(
                {"images": torch.ones(3, 4), "captions": WORDS[:1], "owner": [0]}
            ).features
        ),
        r"^FeatureArray\(images of the dict: \(3, 1, 4\) float32\)$",
    ),
    "model": (lambda m: m.model, "VSEPP, .* parameters\n.*\n  saved with counterfoil 0.1.0\n"),
    "own model": (own, "Towers, .*\n.*by mean_colour; texts by lengths\n  built here, not saved"),
    "embeddings": (lambda m: m.model.encode(WORDS), "2 items, each one vector of 8"),
    "embedded": (lambda m: m.model.embed(m.data["test"]), "VSEPP: images .*4 items"),
    "result": (lambda m: cf.evaluate(m.model, m.data["test"]), "R@1 .*\nimage to text  .* to "),
    "report": (lambda m: cf.evaluate(m.model, m.data["test"]).report, "text to image: R@1 "),
    "ranked": (lambda m: cf.evaluate(m.model, m.data["test"]).report.ranked, "t2i: 20 queries"),
    "negatives": (lambda m: m.negatives, "5 texts of each of 16 images .*; filters: none"),
    "lists": (lambda m: m.negatives.lists, "HardNegativeLists.5 texts of each of 16 images"),
    "store": (lambda m: m.negatives.store, "NegativeStore.train: 5 texts of .*\n  score: cosine"),
    "source": (lambda m: m.trainer.sources[0], "Mined.gives hard text, hard image, "),
    "index": (lambda m: m.index, "4 images and 20 captions"),
    "hits": (lambda m: m.index.search("a star", top_k=2), r"^1\. \d.\d{3}  .* more\n2\. "),
    "captions": (lambda m: m.index.search_image(m.picture, 2), r"^1\. .*' of .*\.png\n2\. "),
    "hits of data": (lambda m: search_dataset(m.model, "a star", m.data["test"], 1), r"^1\. "),
    "explanation": (
        lambda m: cf.explain(m.model, m.picture, "a red star"),
        r"'a red star': cannot tell, score .*\n  score without each word.* 'red' [+-]\d",
    ),
    "explanations": (
        lambda m: cf.explain(m.model, m.picture, WORDS),
        "^'a red circle': .*\n.*\n'two stars': ",
    ),
    "foils": (lambda m: m.foils, r"FoilSet\(.*: \d+ items on 4 images"),
    "foil scores": (
        lambda m: measure_foils(
            m.foils, score_foils([m.model.embed(m.foils.dataset)], m.foils), resamples=50
        ),
        r"\d\.\d \(.* to .*\) of .* items; chance",
    ),
    "trainer": (lambda m: m.trainer, "loss: 1 AdaptiveQuintuplet; negatives: Mined\n  train: "),
    "loss": (lambda m: cf.losses.HardestTripletLoss(margin=0.3), "margin=0.3, reduction='sum'"),
    "own loss": (
        lambda m: cf.WeightedSum(terms={"mine": (1.0, partial(nn.functional.mse_loss))}),
        r"OwnLoss\(mse_loss\)",
    ),
    "card": (lambda m: m.model.card, "SavedModelCard.*VSEPP.*saved with counterfoil 0.1.0"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_prints_in_words(name, made):
    make, words = CASES[name]
    shown = repr(make(made))
    assert re.search(words, shown, re.MULTILINE), shown
    assert len(shown.splitlines()) <= 40
    assert len(shown) < 2500
    for machine in ("tensor(", "object at 0x", "=None", "PosixPath", "array("):
        assert machine not in shown


def test_models_without_a_version_or_provenance_say_what_is_there(made):
    card = replace(made.model.card, version="", provenance={"data": "mine", "seed": 3})
    assert "\n  data mine; seed 3; saved\n" in repr(replace_card(made.model, card))


def test_a_model_without_a_name_has_that_of_its_module():
    assert repr(cf.Model(Towers(), preprocess=mean_colour)).startswith("Model('Towers'): Towers, ")


def replace_card(model, card):
    return cf.Model(model.model, model.processor, model.name, model.spec, card)


@pytest.mark.parametrize("kind", ["BPE", "WordPiece"])
def test_tokenizers_have_their_own_names(kind, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    from counterfoil.data.tokenizers import WordPieceTokenizer

    known = {"<unk>": 0, "a": 1, "b": 2}
    given = {"merges": []} if kind == "BPE" else {}
    backend = tokenizers.Tokenizer(
        getattr(tokenizers.models, kind)(known, unk_token="<unk>", **given)
    )
    pieces = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<unk>"
    )
    pieces.save_pretrained(tmp_path)
    assert WordPieceTokenizer(str(tmp_path)).title == f"{kind} of 3 tokens"


def test_facts_of_a_hit():
    hit = SearchHit(
        1,
        0.5,
        "a.jpg",
        "a.jpg",
        (),
        Path("x/a.jpg"),
        probability=0.25,
        columns={"year": 2020},
        missing=True,
        same=("b.jpg",),
    )
    facts = "25 % likely; year 2020; its file is missing; equal to b.jpg"
    assert repr(hit) == f"1. 0.500  x/a.jpg ({facts})"


def test_doubted_words_and_corrections():
    word = ExplainedWord("red", 2, 5, 0.9, corrections=(WordCorrection("blue", 0.5),))
    explanation = Explanation(
        "a red dog", -0.1, (word,), CorrectedCaption("a blue dog", 0.2, ((2, 6),)), unread=5
    )
    assert repr(explanation).splitlines() == [
        "'a red dog': cannot tell, score -0.100",
        "  doubt of each word: 'red' 90 % (instead 'blue')",
        "  not read, beyond the model's limit: ' dog'",
        "  corrected: 'a blue dog', score 0.200",
    ]


def test_captions_obey_no_terminal_and_lists_are_cut():
    hit = SearchHit(1, 0.5, "a", "a", ("\x1b[2J red",), None)
    assert "\x1b" not in repr(hit)
    shown = repr(Lines([hit] * 1001)).splitlines()
    assert len(shown) == 21
    assert shown[-1] == "… and 981 more"
    assert repr(Lines()) == "[]"
