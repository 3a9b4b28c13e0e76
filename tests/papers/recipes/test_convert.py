"""Checkpoints of VSE-infinity and its kin become model folders; `tests/cli` has the older ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

import hub_cases
from corpus_cases import small_corpus
from counterfoil.core.types import ModalityBatch
from counterfoil.data.tokenizers import SPECIAL
from counterfoil.model import load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions
from counterfoil.papers.cli.convert import convert as convert_command
from counterfoil.papers.models import convert, gpo
from counterfoil.papers.models.gpo import GPO
from counterfoil.papers.models.uniter import UNITER
from uniter_cases import authors_state

WORDS = [*SPECIAL, "a", "dog", "in", "the", "snow"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", "in", "snow"]
BOXES = torch.tensor([[[0.0, 0.0, 0.5, 0.5], [0.2, 0.1, 0.9, 1.0], [0.4, 0.4, 0.6, 0.5]]])


def vocabulary(folder: Path) -> Path:
    index = {word: n for n, word in enumerate(WORDS)}
    plain = {"word2idx": index, "idx2word": {n: w for w, n in index.items()}, "idx": len(WORDS)}
    path = folder / "vocab.json"
    path.write_text(json.dumps(plain))
    return path


def bert(folder: Path) -> Path:
    """A text model's folder, with a tokenizer of fewer pieces than it has room for."""
    hub_cases.bert(folder)
    ids = {piece: n for n, piece in enumerate(PIECES)}
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    model.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.BertTokenizerFast(tokenizer_object=model).save_pretrained(folder)
    return folder


def saved(host: RetrievalModel, path: Path) -> Path:
    """Its weights under the authors' names."""
    theirs = {ours: name for name, ours in gpo.NAMES.prefixes.items()}
    state: dict[str, Tensor] = {}
    for name, value in host.state_dict().items():
        ours = next(prefix for prefix in theirs if name.startswith(prefix))
        state[theirs[ours] + name.removeprefix(ours)] = value
    save_file(state, path)
    return path


def host(text: GRU | BertTextTower) -> GPO:
    return GPO(image=MLPRegions(features=4, width=6), text=text).eval()


@pytest.mark.parametrize("masks", [0, 1])
def test_a_word_for_masks_may_have_been_added(tmp_path, masks):
    made = host(GRU(words=len(WORDS) + masks, word_width=5, width=6))
    checkpoint = saved(made, tmp_path / "a.safetensors")
    convert_command("gpo", checkpoint, vocabulary(tmp_path), tmp_path / "out")
    opened = load_model(tmp_path / "out")
    dataset = small_corpus((2, 1, 3, 2))
    member, processor = opened.embed(dataset), opened.process(dataset)
    images = made.encode_images(processor.images(torch.arange(4)))
    texts = made.encode_texts(processor.texts(torch.arange(8)))
    found = member.model.score_matrix(member.images, member.texts)
    torch.testing.assert_close(found, made.score_matrix(images, texts))


def test_bert_comes_with_its_folder(tmp_path):
    folder = bert(tmp_path / "bert")
    made = host(BertTextTower(name=str(folder), width=6))
    checkpoint = saved(made, tmp_path / "a.safetensors")
    convert_command("gpo", checkpoint, folder, tmp_path / "out")
    opened = load_model(tmp_path / "out")
    assert opened.processor.tokenizer.tokens(opened.processor.tokenizer.encode(["dogs"])[0]) == [
        *("[CLS]", "dog", "##s", "[SEP]")
    ]
    texts = opened.process(small_corpus((2, 1))).texts(torch.arange(3))
    torch.testing.assert_close(
        opened.model.encode_texts(texts).tokens, made.encode_texts(texts).tokens
    )


def refused(system: str, made: GPO, given: Path, folder: Path, message: str) -> None:
    checkpoint = saved(made, folder / "a.safetensors")
    with pytest.raises(ValueError, match=message):
        convert_command(system, checkpoint, given, folder / "out")
    assert not (folder / "out").exists()


@pytest.mark.parametrize("more", [-1, 2])
def test_another_vocabulary_is_refused(tmp_path, more):
    made = host(GRU(words=len(WORDS) + more, word_width=5, width=6))
    message = f"has 9 words and this checkpoint was trained with {9 + more}; give the vocabulary"
    refused("gpo", made, vocabulary(tmp_path), tmp_path, message)


def test_words_and_pieces_are_not_confused(tmp_path):
    folder = bert(tmp_path / "bert")
    made = host(BertTextTower(name=str(folder), width=6))
    refused("gpo", made, vocabulary(tmp_path), tmp_path, "by BERT and .*vocab.json is a file; give")
    made = host(GRU(words=len(WORDS), word_width=5, width=6))
    refused("gpo", made, folder, tmp_path, "reads words and .*bert is a folder; give its vocab")
    refused("scan", made, folder, tmp_path, "scan never reads texts by BERT, and .*bert was given")


def test_older_systems_add_no_word(tmp_path, monkeypatch):
    made = host(GRU(words=len(WORDS) + 1, word_width=5, width=6))
    monkeypatch.setitem(convert.SYSTEMS, "scan", gpo.gpo_from_checkpoint)
    refused("scan", made, vocabulary(tmp_path), tmp_path, "has 9 words and this .* with 10")


def test_uniter_brings_its_own_embeddings(tmp_path):
    folder = bert(tmp_path / "bert")
    made = UNITER(
        layers=1, width=64, heads=1, inner=8, vocabulary=12, features=4, mask=4, outputs=("match",)
    ).eval()
    save_file(authors_state(made.state_dict()), tmp_path / "uniter.safetensors")
    checkpoint, out = tmp_path / "uniter.safetensors", tmp_path / "out"
    convert_command("uniter", checkpoint, folder, out)
    opened = load_model(out)
    assert opened.processor.tokenizer.tokens([opened.model.text.mask_word]) == ["[MASK]"]
    texts = opened.processor.process_texts(["a dog in snow"])
    images = ModalityBatch(
        torch.zeros(1).long(), torch.rand(1, 3, 4), torch.ones(1, 3).bool(), BOXES
    )
    score = opened.model.score_matrix(
        opened.model.encode_images(images), opened.model.encode_texts(texts)
    )
    pooled = made.joint(made.encode_images(images), made.encode_texts(texts)).pooled
    torch.testing.assert_close(score[0], made.matched(pooled)[0, 1:])
