"""A tiny UNITER that doubts and corrects, with words or wordpieces, and slow readings of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers
import torch
import transformers

import tailored_cases
from counterfoil.core.config import config
from counterfoil.core.types import Embeddings, ModalityBatch, WordHead, WordSlots
from counterfoil.data.processor import FeatureProcessor, ProcessedDataset, Processor
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import Tokenizer, WordPieceTokenizer, WordTokenizer
from counterfoil.saved import save_model

if TYPE_CHECKING:
    from counterfoil.papers.models.uniter import UNITER


SCENES = "scenes:images=36,features=regions"
IMAGE = "scene-0-test-00000"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]")
VOCABULARY = (
    *SPECIAL,
    *("a", "an", "A", "An", "red", "Red", "orange", "dog", "cat", "sk", "surf", "near", ".", ","),
    *("##ate", "##board", "##ing", "##s"),
)
CAPTIONS = (
    "A red dog near a skateboard.",
    "Dogs, an orange CAT near skates",
    "surf",
    "A surfing dog near a red cat near a surfboard, a dog.",
)


def pieces(folder: Path) -> WordPieceTokenizer:
    """A cased tokenizer of wordpieces."""
    ids = {word: place for place, word in enumerate(VOCABULARY)}
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, **{f"{name}_token": word for name, word in names}
    )
    fast.save_pretrained(folder)
    return WordPieceTokenizer(str(folder), longest=40)


def model(tokenizer: Tokenizer, **options: object) -> UNITER:
    """A UNITER whose heads have something to say."""
    seen = tailored_cases.processor()
    made = tailored_cases.host(
        ProcessedDataset(Processor(seen.processor.image_processor, tokenizer), seen.dataset),
        **options,
    ).eval()
    for name, parameter in made.named_parameters():
        if name.startswith("says.") and parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.0)
    return made.requires_grad_(False)


def saved(folder: Path, outputs: tuple[str, ...] = tailored_cases.ALL, longest: int = 30) -> Path:
    """A model folder that reads the captions and regions of `SCENES`, up to so many words."""
    from counterfoil.papers.models.uniter import UNITER

    dataset = load_dataset(SCENES)
    assert dataset.features is not None
    words = WordTokenizer.of(dataset.texts, longest=longest)
    spec = config(
        UNITER,
        layers=1,
        width=16,
        heads=2,
        inner=16,
        vocabulary=words.size,
        positions=40,
        features=dataset.features.width,
        dropout=0.0,
        outputs=outputs,
    )
    torch.manual_seed(0)
    model = spec.build()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=1.0 if name.startswith("says.") else 0.3)
    processor = Processor(FeatureProcessor(dataset.features.width), words)
    save_model(folder, spec=spec, model=model, processor=processor)
    return folder


def doubts(made: UNITER, one: Embeddings, ids: list[int]) -> tuple[float, list[float]]:
    """Score and doubt of each token of one sentence with one image."""
    found = made.read(one, _encoded(made, ids), frozenset({WordHead.SCORE, WordHead.DOUBT}))
    logits = found.doubt[0].double()
    wrong, right = logits[:, 0].exp(), logits[:, 1].exp()
    return float(made.loss_scores(found.score[0])), (wrong / (wrong + right)).tolist()


def logs(
    made: UNITER, one: Embeddings, ids: list[int], at: int, barred: set[int]
) -> dict[int, float]:
    """Log probability of every token that may stand at a place of one sentence."""
    slots = WordSlots(torch.tensor([0]), torch.tensor([at]))
    found = made.read(one, _encoded(made, ids), frozenset({WordHead.CORRECT}), slots)
    logits = found.correct[0].double().tolist()
    kept = {token: logit for token, logit in enumerate(logits) if token not in barred}
    total = torch.tensor(list(kept.values()), dtype=torch.double).logsumexp(0)
    return {token: logit - float(total) for token, logit in kept.items()}


def every_rewording(
    made: UNITER, one: Embeddings, ids: list[int], places: tuple[int, ...], tokenizer: Tokenizer
) -> dict[tuple[int, ...], float]:
    """Probability of all tuples of tokens in the place of a word."""
    spelt = tokenizer.tokens(range(tokenizer.size))
    known = len(made.text.word_embeddings.weight)
    special = {*unwritten(tokenizer), *range(tokenizer.size, known)}
    inner = {token for token, text in enumerate(spelt) if text.startswith("##")}
    found: dict[tuple[int, ...], float] = {(): 0.0}
    for piece, place in enumerate(places):
        grown = {}
        for start, log in found.items():
            now = list(ids)
            for at, token in zip(places, start):
                now[at] = token
            barred = special if piece else special | inner
            for token, more in logs(made, one, now, place, barred).items():
                grown[(*start, token)] = log + more
        found = grown
    return found


def unwritten(tokenizer: Tokenizer) -> set[int]:
    """Special tokens and punctuation, which are part of no word."""
    spelt = tokenizer.tokens(range(tokenizer.size))
    signs = {token for token, text in enumerate(spelt) if text in (".", ",", "!", "?", ";", ":")}
    return signs | set(tokenizer.wordless)


def write_lines(path: Path, rows: list[object]) -> Path:
    """A file with one JSON value a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _encoded(made: UNITER, ids: list[int]) -> Embeddings:
    values = torch.tensor([ids])
    return made.encode_texts(
        ModalityBatch(torch.tensor([-1]), values, torch.ones_like(values).bool())
    )
