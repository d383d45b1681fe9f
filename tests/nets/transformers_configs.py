"""Small models of transformers, from their configs alone: a class, its config's values, its inputs.

Nothing is downloaded. `attn_implementation` is eager, the way that every exporter takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

IDS, MASK = "ids:int64[batch=1..4,seq=2..24]{2..99}", "mask:int64[batch=1..4,seq=2..24]{0..1}"
IMAGE = "image:float32[batch=1..4,3,32,32]"
SOUND = "sound:float32[batch=1..3,800]"
MEL = "sound:float32[batch=1..3,16,40]"


class Text(nn.Module):
    """A model of token ids and their mask."""

    def __init__(self, model: nn.Module, extra: Mapping[str, object]) -> None:
        super().__init__()
        self.model, self.extra = model, dict(extra)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Map ids and mask (batch, seq) to the last hidden state."""
        out: Tensor = self.model(input_ids=ids, attention_mask=mask, **self.extra)[0]
        return out


class Image(nn.Module):
    """A model of images."""

    def __init__(self, model: nn.Module, extra: Mapping[str, object]) -> None:
        super().__init__()
        self.model, self.extra = model, dict(extra)

    def forward(self, image: Tensor) -> Tensor:
        """Map images (batch, 3, h, w) to the model's first output."""
        out: Tensor = self.model(pixel_values=image, **self.extra)[0]
        return out


class Sound(nn.Module):
    """A model of samples or of mel features."""

    def __init__(self, model: nn.Module, extra: Mapping[str, object]) -> None:
        super().__init__()
        self.model, self.extra = model, dict(extra)

    def forward(self, sound: Tensor) -> Tensor:
        """Map the sound to the last hidden state."""
        out: Tensor = self.model(sound, **self.extra)[0]
        return out


@dataclass(frozen=True, kw_only=True)
class Config:
    """A class of transformers, the values of its config, and how it is called."""

    model: str
    config: str
    values: Mapping[str, object]
    wrap: Callable[[nn.Module, Mapping[str, object]], nn.Module]
    inputs: tuple[str, ...]
    extra: Mapping[str, object]

    def build(self, layers: int) -> nn.Module:
        """Build it untrained; `layers` counts for those that have a plain number of layers."""
        library = import_module("transformers")
        values = dict(self.values)
        for name in ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers"):
            if name in values:
                values[name] = layers
        config: PreTrainedConfig = getattr(library, self.config)(**values)
        config._attn_implementation = "eager"
        place, _, name = self.model.rpartition(".")  # few encoders are not offered at the top
        holder = import_module(f"transformers.models.{place}") if place else library
        return self.wrap(getattr(holder, name)(config), self.extra)


_BERT: Mapping[str, object] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
_VIT: Mapping[str, object] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
_SWIN: Mapping[str, object] = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 4,
}
_CONVNEXT: Mapping[str, object] = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
_RESNET: Mapping[str, object] = {
    "embedding_size": 16,
    "hidden_sizes": [16, 32],
    "depths": [1, 2],
    "layer_type": "basic",
}
_SEGFORMER: Mapping[str, object] = {
    "hidden_sizes": [16, 16, 32, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 2, 4],
    "decoder_hidden_size": 16,
    "num_labels": 4,
}
_T5: Mapping[str, object] = {
    "vocab_size": 100,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
}
_GPT: Mapping[str, object] = {
    "vocab_size": 100,
    "n_positions": 40,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
_DISTIL: Mapping[str, object] = {
    "vocab_size": 100,
    "max_position_embeddings": 40,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 64,
}
_LLAMA: Mapping[str, object] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 40,
}
_WAV: Mapping[str, object] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 3],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
}
_WHISPER: Mapping[str, object] = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "num_mel_bins": 16,
    "max_source_positions": 20,
}
_MOBILEVIT: Mapping[str, object] = {
    "image_size": 32,
    "hidden_sizes": [16, 24, 32],
    "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32],
    "num_attention_heads": 2,
}
_NO_CACHE: Mapping[str, object] = {"use_cache": False}


def _row(
    model: str,
    values: Mapping[str, object],
    wrap: type[Text | Image | Sound] = Text,
    inputs: tuple[str, ...] = (IDS, MASK),
    extra: Mapping[str, object] | None = None,
    *,
    config: str = "",
) -> Config:
    return Config(
        model=model,
        config=config or model.removesuffix("Model") + "Config",
        values=values,
        wrap=wrap,
        inputs=inputs,
        extra=extra or {},
    )


CONFIGS: Mapping[str, Config] = {
    "bert": _row("BertModel", _BERT),
    "roberta": _row("RobertaModel", _BERT),
    "electra": _row("ElectraModel", {**_BERT, "embedding_size": 16}),
    "albert": _row("AlbertModel", {**_BERT, "embedding_size": 16}),
    "distilbert": _row("DistilBertModel", _DISTIL),
    "mpnet": _row("MPNetModel", _BERT),
    "ernie": _row("ErnieModel", _BERT),
    "gpt2": _row("GPT2Model", _GPT, extra=_NO_CACHE),
    "llama": _row("LlamaModel", _LLAMA, extra=_NO_CACHE),
    "qwen2": _row("Qwen2Model", _LLAMA, extra=_NO_CACHE),
    "t5": _row("T5EncoderModel", _T5, config="T5Config"),
    "vit": _row("ViTModel", _VIT, Image, (IMAGE,)),
    "deit": _row("DeiTModel", _VIT, Image, (IMAGE,)),
    "dinov2": _row("Dinov2Model", {**_VIT, "mlp_ratio": 2}, Image, (IMAGE,)),
    "clip": _row("CLIPVisionModel", _VIT, Image, (IMAGE,), config="CLIPVisionConfig"),
    "siglip": _row("SiglipVisionModel", _VIT, Image, (IMAGE,), config="SiglipVisionConfig"),
    "swin": _row("SwinModel", _SWIN, Image, (IMAGE,)),
    "convnext": _row("ConvNextModel", _CONVNEXT, Image, (IMAGE,)),
    "resnet": _row("ResNetModel", _RESNET, Image, (IMAGE,)),
    "regnet": _row(
        "RegNetModel", {**_RESNET, "layer_type": "y", "groups_width": 8}, Image, (IMAGE,)
    ),
    "mobilenet": _row(
        "MobileNetV2Model", {"depth_multiplier": 0.25, "image_size": 32}, Image, (IMAGE,)
    ),
    "mobilevit": _row("MobileViTModel", _MOBILEVIT, Image, (IMAGE,)),
    "segformer": _row(
        "SegformerForSemanticSegmentation", _SEGFORMER, Image, (IMAGE,), config="SegformerConfig"
    ),
    "wav2vec2": _row("Wav2Vec2Model", _WAV, Sound, (SOUND,)),
    "whisper": _row(
        "whisper.modeling_whisper.WhisperEncoder", _WHISPER, Sound, (MEL,), config="WhisperConfig"
    ),
}
