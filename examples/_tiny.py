"""A tiny CLIP with random weights, so that every example runs offline in seconds (`--smoke`)."""

import json
from pathlib import Path

import tokenizers
import torch
import transformers

WORDS = [
    "a",
    "an",
    "the",
    "and",
    "of",
    "in",
    "on",
    "to",
    "is",
    "are",
    "there",
    "with",
    "two",
    "three",
    "four",
    "one",
    "left",
    "right",
    "above",
    "below",
    "small",
    "large",
    "big",
    "red",
    "green",
    "blue",
    "yellow",
    "purple",
    "orange",
    "black",
    "white",
    "gray",
    "grey",
    "circle",
    "circles",
    "square",
    "squares",
    "triangle",
    "triangles",
    "star",
    "stars",
    "dog",
    "snow",
    "picture",
]


def tiny_clip(folder: Path) -> str:
    """Save a CLIP of 16 dimensions with a word tokenizer; return its path for `cf.load_model`."""
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    vocabulary = {word: row for row, word in enumerate(["<pad>", "<unk>", *WORDS, "<end>"])}
    end = vocabulary["<end>"]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.normalizer = tokenizers.normalizers.Lowercase()
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", end)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<end>",
        unk_token="<unk>",
        pad_token="<pad>",
        model_max_length=32,
    ).save_pretrained(folder)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.CLIPConfig(
        text_config={
            **size,
            "num_attention_heads": 2,
            "vocab_size": len(vocabulary),
            "max_position_embeddings": 32,
            "eos_token_id": end,
            "pad_token_id": 0,
        },
        vision_config={**size, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    pixels = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "crop_size": 32}
    pixels |= {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    transformers.CLIPModel(config).save_pretrained(folder)
    return str(folder)
