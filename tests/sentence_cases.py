"""A tiny random sentence encoder, saved as a folder of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
import torch
import transformers

import hub_cases

MODULES = "sentence_transformers.models."


def encoder(folder: Path, words: Sequence[str]) -> str:
    """One that knows these words, whose weights are large enough to show; the mean of tokens."""
    torch.manual_seed(0)
    ids = {word: row for row, word in enumerate(["[PAD]", "[UNK]", *words])}
    read = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    read.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=read, pad_token="[PAD]", unk_token="[UNK]"
    )
    fast.save_pretrained(folder)
    config = transformers.BertConfig(
        **hub_cases.TEXT | {"vocab_size": len(ids)}, max_position_embeddings=16
    )
    model = transformers.BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) / 3)
    model.save_pretrained(folder)
    write(folder, "modules.json", [_module(0, "", "Transformer"), _module(1, "1_Pooling")])
    write(folder, "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    write(folder, "1_Pooling/config.json", pooling)
    return str(folder)


def write(folder: Path, name: str, plain: object) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(plain))


def _module(number: int, path: str, kind: str = "Pooling") -> dict[str, object]:
    return {"idx": number, "name": str(number), "path": path, "type": MODULES + kind}
