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
from counterfoil.core.config import config, lazy
from counterfoil.core.types import ModalityBatch
from counterfoil.data.tokenizers import SPECIAL, WordTokenizer
from counterfoil.model import load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.checkpoints import ConvertedModel
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions
from counterfoil.papers.cli.convert import convert as convert_command
from counterfoil.papers.models import convert, dive, gpo
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


LONG = " ".join(["a dog in the snow"] * 15)  # 75 words


@pytest.mark.parametrize("reads", ["words", "pieces"])
def test_no_caption_is_cut(tmp_path, reads):
    """The authors cut none, where BERT has the positions."""
    given = bert(tmp_path / "bert") if reads == "pieces" else vocabulary(tmp_path)
    text = (
        BertTextTower(name=str(given), width=6)
        if reads == "pieces"
        else GRU(words=len(WORDS), word_width=5, width=6)
    )
    made = host(text)
    convert_command("gpo", saved(made, tmp_path / "a.safetensors"), given, tmp_path / "out")
    opened = load_model(tmp_path / "out")
    items = opened.processor.process_texts([LONG])
    assert items.mask.sum() == {"words": 77, "pieces": 12}[reads]  # all that this BERT reads
    torch.testing.assert_close(
        opened.model.encode_texts(items).tokens, made.encode_texts(items).tokens
    )


@pytest.mark.parametrize("masks", [0, 1])
def test_training_goes_on_with_what_the_authors_drop(tmp_path, masks):
    made = host(GRU(words=len(WORDS) + masks, word_width=5, width=6))
    checkpoint = saved(made, tmp_path / "a.safetensors")
    convert_command("gpo", checkpoint, vocabulary(tmp_path), tmp_path / "out")
    model = load_model(tmp_path / "out").model
    assert model.image.augment.share == 0.2
    assert model.text.augment.share == (0.2 if masks else 0.0)
    assert model.text.mask_word == (len(WORDS) if masks else None)
    assert torch.equal(model.text.embed.weight, made.text.embed.weight)


def test_a_mask_may_be_the_last_word(tmp_path):
    path = vocabulary(tmp_path)
    plain = json.loads(path.read_text())
    plain["word2idx"]["<mask>"] = len(WORDS)
    path.write_text(json.dumps(plain))
    made = host(GRU(words=len(WORDS) + 1, word_width=5, width=6))
    checkpoint = saved(made, tmp_path / "a.safetensors")
    convert_command("gpo", checkpoint, path, tmp_path / "out")
    assert load_model(tmp_path / "out").model.text.mask_word == len(WORDS)


def test_the_pieces_of_bert_are_dropped_too(tmp_path):
    folder = bert(tmp_path / "bert")
    made = host(BertTextTower(name=str(folder), width=6))
    convert_command("gpo", saved(made, tmp_path / "a.safetensors"), folder, tmp_path / "out")
    model = load_model(tmp_path / "out").model
    assert (model.text.augment.share, model.text.mask_word) == (0.2, PIECES.index("[MASK]"))


@pytest.mark.parametrize(
    ("system", "options", "expected"),
    [
        ("gpo", {}, (0.2, 0.2, 0.0, True)),
        ("esa", {}, (0.0, 0.2, 0.1, True)),
        ("user", {}, (0.0, 0.2, 0.0, True)),
        ("chan", {}, (0.2, 0.2, 0.0, True)),
        ("chan", {"drop": True, "obj_drop_rate": 0.3}, (0.3, 0.2, 0.0, True)),
        ("chan", {"drop": False}, (0.0, 0.0, 0.0, True)),
        ("hrem", {"size_augment": 0}, (0.0, 0.0, 0.0, True)),
        ("hrem", {"size_augment": 1}, (0.2, 0.2, 0.0, True)),
        ("dive", {}, (0.2, 0.2, 0.0, False)),
        ("dive", {"butd_drop_prob": 0.1, "caption_drop_prob": 0}, (0.1, 0.0, 0.0, False)),
        ("sgraf", {}, (0.0, 0.0, 0.4, True)),
        ("scan", {}, (0.0, 0.0, 0.0, True)),
    ],
)
def test_what_each_system_drops(system, options, expected):
    found = convert.find_augmentation(system, options)
    assert (found.regions, found.words, found.dropout, found.ends) == expected


def test_drops_reach_towers_inside_of_others(tmp_path):
    tower = lazy(MLPRegions, features=4, width=6, stacked=True)
    text = lazy(GRU, words=len(WORDS) + 1, word_width=5, width=6)
    spec = config(
        dive.DivE,
        image=lazy(dive.PooledParts, tower=tower),
        text=lazy(dive.WordsAndStates, gru=text),
        head_width=2,
    )
    made = ConvertedModel(spec, spec.build().state_dict())
    tokenizer = WordTokenizer(WORDS)
    model = convert.with_augmentation(made, "dive", tokenizer).build()
    assert model.image.tower.augment.share == 0.2
    assert (model.text.gru.augment.share, model.text.gru.augment.ends) == (0.2, False)


def test_a_relative_folder_of_bert_is_not_needed_again(tmp_path, monkeypatch):
    folder = bert(tmp_path / "bert")
    made = host(BertTextTower(name=str(folder), width=6))
    saved(made, tmp_path / "a.safetensors")
    monkeypatch.chdir(tmp_path)
    convert_command("gpo", Path("a.safetensors"), Path("bert"), Path("out"))
    (tmp_path / "else").mkdir()
    folder.rename(tmp_path / "gone")
    monkeypatch.chdir(tmp_path / "else")
    texts = load_model(tmp_path / "out").processor.process_texts(["dogs in snow"])
    found = load_model(tmp_path / "out").model.encode_texts(texts)
    torch.testing.assert_close(found.tokens, made.encode_texts(texts).tokens)


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
