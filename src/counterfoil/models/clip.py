"""CLIP, SigLIP and other dual encoders of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, final

from torch import Tensor, nn
from torch.nn.functional import pad

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.layers.lora import LoRADualEncoder, add_lora
from counterfoil.models.layers.pooling import masked_ids, single_vector, unit_vectors
from counterfoil.models.layers.positions import load_stretched, stretched_length
from counterfoil.models.layers.pretrained import config_of, config_to_json, load_hf_model

POSITIONS = "text_model.embeddings.position_embedding.weight"
GEMMA_WORDS, GEMMA_PAD = 256_000, 0  # of the tokenizer of SigLIP 2


@final
class DualEncoder(LoRADualEncoder):
    """A pretrained dual encoder, compared by cosine (CLIP, arXiv:2103.00020, and SigLIP).

    Texts of the SigLIP family are padded to their full length and not masked, as they were
    trained; a score does not depend on how far a batch was padded.
    """

    @classmethod
    def pretrained_name(cls, arguments: Mapping[str, Any]) -> str | None:
        """The folder or hub name of the pretrained CLIP; None where the call names none."""
        return str(arguments.get("name", "")) or None

    def __init__(
        self,
        *,
        name: str,
        pretrained: bool = True,
        config: str | None = None,
        lora: int = 0,
        apart: bool = False,
        positions: int = 0,
    ) -> None:
        """Initialise the module.

        Args:
            name: folder or name of the model.
            pretrained: load its weights; else it starts from fresh ones.
            config: its configuration as JSON, for a model that starts from fresh weights; then
                neither the folder nor the hub is read.
            lora: rank of adapters on the attention projections, which alone are trained; 0 to
                train everything.
            apart: keep adapters beside the weights in a finished model, which then needs peft; else
                they are merged.
            positions: number of text positions, to which those of a CLIP are stretched, see
                `counterfoil.models.layers.positions`; 0 for its own.

        Raises:
            ValueError: there is no such model, it does not encode both images and texts, or it
                cannot have adapters or more positions.
        """
        super().__init__(lora, apart=apart)
        self.body = load_hf_model(name, pretrained=pretrained, config=config)
        if not (
            hasattr(self.body, "get_image_features") and hasattr(self.body, "get_text_features")
        ):
            raise ValueError(
                f"{name} is a {type(self.body).__name__}, which does not encode images and texts; "
                "give a CLIP or SigLIP model"
            )
        if positions:
            self.body = _with_positions(self.body, name, positions)
        for parameter, value in self.body.named_parameters():
            if parameter.startswith("logit_"):  # scale and bias belong to the objective
                value.requires_grad_(False)
        if lora:
            self.body = add_lora(self.body, lora)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode pixels (N, C, H, W) as one unit vector each."""
        pixels = images.values.to(next(self.body.parameters()).dtype)
        body: Any = self.body
        if self._kind == "siglip2":
            output = body.get_image_features(**_unfolded(pixels, self._config.vision_config))
        else:
            output = body.get_image_features(pixel_values=pixels)
        return unit_vectors(single_vector(_vector(output)))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode token ids (N, L) as one unit vector each."""
        ids, mask = masked_ids(texts), texts.mask.long()
        body: Any = self.body
        if not self._kind.startswith("siglip"):
            return unit_vectors(
                single_vector(_vector(body.get_text_features(input_ids=ids, attention_mask=mask)))
            )
        config = self._config.text_config
        room = config.max_position_embeddings - ids.shape[1]
        if room < 0:
            raise ValueError(
                f"texts of {ids.shape[1]} tokens do not fit a model that reads "
                f"{config.max_position_embeddings}; cut them"
            )
        # the configurations of SigLIP 2 keep SigLIP's padding of 1, which is its end mark
        filler = GEMMA_PAD if is_siglip2(self._config) else config.pad_token_id or 0
        full = pad(ids.masked_fill(~texts.mask, filler), (0, room), value=filler)
        return unit_vectors(single_vector(_vector(body.get_text_features(input_ids=full))))

    @property
    def config_json(self) -> str:
        """Its configuration as JSON, as the argument `config` takes it."""
        return config_to_json(self._config)

    @property
    def _config(self) -> Any:
        return self.body.config

    @property
    def _kind(self) -> str:
        return str(self._config.model_type)


def _with_positions(body: nn.Module, name: str, positions: int) -> nn.Module:
    """The model with so many text positions, stretched if it has fewer."""
    config: Any = body.config
    own = int(config.text_config.max_position_embeddings)
    if own == positions:
        return body
    if POSITIONS not in body.state_dict() or str(config.model_type).startswith("siglip"):
        raise ValueError(
            f"{name} is a {config.model_type}; only the text positions of a CLIP are stretched: "
            "leave --long-captions out"
        )
    if stretched_length(own) != positions:
        raise ValueError(
            f"positions={positions} were asked of {name}, which has {own}; give "
            f"{stretched_length(own)} to stretch them, or 0 to leave them"
        )
    config = deepcopy(config)
    config.text_config.max_position_embeddings = positions
    longer = load_hf_model(name, pretrained=False, config=config_to_json(config))
    load_stretched(longer, body, POSITIONS)
    return longer


def is_siglip2(config: Any) -> bool:
    """Return True for SigLIP 2, whose models of one resolution have SigLIP's model type."""
    kind = str(config.model_type)
    return kind == "siglip2" or (
        kind == "siglip" and int(config.text_config.vocab_size) == GEMMA_WORDS
    )


def max_text_length(name: str) -> int:
    """Return the maximum text length in tokens of the model of this folder or name."""
    config = config_of(name)
    text = getattr(config, "text_config", config)
    length = getattr(text, "max_position_embeddings", None)
    if length is None:
        raise ValueError(f"{name} does not say how long its texts may be; is it a text model?")
    return int(length)


def vector_width(name: str) -> int:
    """Return the width of the vectors of the CLIP or SigLIP of this folder or name."""
    config = config_of(name)
    if not (hasattr(config, "vision_config") and hasattr(config, "text_config")):
        raise ValueError(
            f"{name} is a {config.model_type}, which does not encode images and texts; give a CLIP "
            "or SigLIP model"
        )
    return int(getattr(config, "projection_dim", None) or config.vision_config.hidden_size)


def _vector(output: Any) -> Tensor:
    """Return (N, D) from a tensor (transformers 4) or an output record (transformers 5)."""
    vector: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return vector


def _unfolded(pixels: Tensor, config: Any) -> dict[str, Tensor]:
    """Cut square pictures into the patch lists that SigLIP 2's flexible model reads."""
    side = config.patch_size
    n, channels, height, width = pixels.shape
    rows, columns = height // side, width // side
    # (N, C, rows, side, columns, side) -> (N, rows, columns, side, side, C): channels last
    grid = pixels.view(n, channels, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
    patches = grid.reshape(n, rows * columns, side * side * channels)
    return {
        "pixel_values": patches,
        "pixel_attention_mask": patches.new_ones(patches.shape[:2]).long(),
        "spatial_shapes": patches.new_tensor([[rows, columns]]).long().expand(n, 2),
    }
