"""Tiny random models of sentence-transformers, saved as folders: dense, multi-vector, a judge.

The library is imported where it is used: that takes seconds, and every process of a run of the
tests imports this module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<image>", "yes", "no")
SIDE, PATCH, WIDTH = 16, 8, 16
LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
# one user message of images and texts; what a generative model reads before its answer
CHAT = (
    "{% for m in messages %}<s>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %} {{ part.text }}"
    "{% endif %}{% endfor %}{% endif %} </s>{% endfor %}"
)


def tokenizer(words: Sequence[str]) -> Any:
    ids = {word: row for row, word in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    read = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    read.normalizer = tokenizers.normalizers.Lowercase()
    read.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=read,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<image>"],
        model_max_length=48,
    )


def backbone(folder: Path, words: Sequence[str], kind: str, *, dtype: Any = None) -> Path:
    """A LLaVA, as a model of vision and language of 2B parameters is one, or a CLIP."""
    torch.manual_seed(0)
    read = tokenizer(words)
    vision = {"hidden_size": WIDTH, "image_size": SIDE, "patch_size": PATCH, **LAYERS}
    crop = {"height": SIDE, "width": SIDE}
    pictures = transformers.CLIPImageProcessorPil(size=crop, crop_size=crop)
    if kind == "clip":
        text = {"hidden_size": WIDTH, "vocab_size": len(read), "max_position_embeddings": 48}
        text |= {"eos_token_id": 3, "pad_token_id": 0, **LAYERS}
        model = transformers.CLIPModel(
            transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)
        )
        # CLIP pools at the end token, which the tokenizer writes here
        read.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
        )
        processor: Any = transformers.CLIPProcessor(pictures, read)
    else:
        text_config = transformers.LlamaConfig(
            vocab_size=len(read), hidden_size=WIDTH, pad_token_id=0, num_key_value_heads=2, **LAYERS
        )
        config = transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**vision),
            text_config=text_config,
            image_token_index=4,
            vision_feature_layer=-1,
            image_seq_length=(SIDE // PATCH) ** 2,
        )
        model = transformers.LlavaForConditionalGeneration(config)
        processor = transformers.LlavaProcessor(
            pictures,
            read,
            patch_size=PATCH,
            vision_feature_select_strategy="default",
            chat_template=CHAT,
            num_additional_image_tokens=1,
        )
    with torch.no_grad():
        for parameter in model.parameters():  # large enough to show
            parameter.add_(torch.randn(parameter.shape) / 8)
    model.to(dtype or torch.float32).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def dense(folder: Path, words: Sequence[str], kind: str = "clip", *, dtype: Any = None) -> Path:
    """A CLIP with a projection behind it, or a model of vision and language with pooling."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    base = Transformer(str(backbone(folder / "base", words, kind, dtype=dtype)))
    torch.manual_seed(1)
    if kind == "clip":
        modules: list[Any] = [base, Dense(WIDTH, 8), Normalize()]
    else:
        modules = [base, Pooling(WIDTH, "lasttoken"), Normalize()]
    return saved(SentenceTransformer(modules=modules, device="cpu"), folder / "dense")


def multi(folder: Path, words: Sequence[str], *, mean: bool = False) -> Path:
    """A model of vision and language whose tokens are projected: as ColPali and PyLate's."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    base = Transformer(str(backbone(folder / "base", words, "llava")))
    torch.manual_seed(1)
    project = Dense(
        WIDTH, 8, bias=False, activation_function=None, module_input_name="token_embeddings"
    )
    normal = Normalize(module_input_name="token_embeddings")
    model = MultiVectorEncoder(
        modules=[base, project, normal, MultiVectorMask(skiplist_words=["."])],
        device="cpu",
        similarity_fn_name="meanmaxsim" if mean else "maxsim",
    )
    return saved(model, folder / "multi")


def judge(folder: Path, words: Sequence[str]) -> Path:
    """A generative model of vision and language that answers yes or no."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    base = Transformer(
        str(backbone(folder / "base", words, "llava")), transformer_task="any-to-any"
    )
    model = CrossEncoder(modules=[base, LogitScore(5, 6)], device="cpu")
    return saved(model, folder / "judge")


def files(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): json.loads(path.read_text())
        for path in folder.rglob("*.json")
        if path.stat().st_size < 5000
    }
