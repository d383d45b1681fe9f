"""The files that runtimes for generation read beside a decoder.

onnxruntime-genai reads `genai_config.json`, whose fields are those of its model builder; both
runtimes read the tokenizer of the checkpoint and its generation settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError, ErrorCode, UsageError, first_line
from ..core.generation import PAST, PRESENT, DecoderLoop
from ..core.signature import Signature

ONNXRUNTIME_GENAI, OPENVINO_GENAI = "onnxruntime-genai", "openvino-genai"
GENAI_CONFIG, OPENVINO_MODEL = "genai_config.json", "openvino_model.xml"
MODEL_CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
# Any decoder by the names of its tensors; other types have names, windows or caches of their own.
_TYPE = "decoder"
WHISPER = "whisper"
FRAMES = 3000  # of the features, 30 s: onnxruntime-genai takes no other number
_SEARCH = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
_UNUSED = ("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids")
_POSITIONS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length",
    "max_target_positions",
)  # fmt: skip
_MAX_BYTES = 1 << 26  # of a JSON file of a checkpoint


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What a checkpoint's folder says of generation; None or empty where it says nothing.

    `kind` is the type of the model. `ends` are the tokens that end a text; the first pads where the
    checkpoint has no token of its own for that. `search` are the settings of sampling, `unused`
    those that onnxruntime-genai ignores.
    """

    vocabulary: int | None
    positions: int | None = None
    hidden: int | None = None
    heads: int | None = None
    begin: int | None = None
    ends: tuple[int, ...] = ()
    pad: int | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    unused: tuple[str, ...] = ()


def read_settings(folder: Path) -> GenerationSettings:
    """Read `config.json` and `generation_config.json`, whose settings come first.

    Raises:
        CheckpointError: one cannot be read.
    """
    config = _read_json(folder / MODEL_CONFIG)
    text = config.get("text_config")
    own = {**config, **text} if isinstance(text, dict) else config
    path = folder / GENERATION_CONFIG
    chosen = _read_json(path) if path.is_file() else {}
    tokens = {**own, **{name: value for name, value in chosen.items() if value is not None}}
    ends = tokens.get("eos_token_id")
    listed: list[Any] = ends if isinstance(ends, list) else [ends]
    pad = _whole(tokens, "pad_token_id")
    return GenerationSettings(
        vocabulary=_whole(own, "vocab_size"),
        positions=_whole(own, *_POSITIONS),
        hidden=_whole(own, "hidden_size", "n_embd", "d_model"),
        heads=_whole(own, "num_attention_heads", "n_head", "num_heads"),
        begin=_whole(tokens, "bos_token_id"),
        ends=tuple(filter(_is_whole, listed)),
        pad=next(filter(_is_whole, listed), None) if pad is None else pad,
        search={name: chosen[name] for name in _SEARCH if chosen.get(name) is not None},
        kind=str(config.get("model_type", ""))[:80],
        unused=tuple(name for name in _UNUSED if chosen.get(name)),
    )


def _read_json(path: Path) -> dict[str, Any]:
    found, why = None, "it is no JSON object of a usual size"
    try:
        if path.stat().st_size <= _MAX_BYTES:
            found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = first_line(error)
    if isinstance(found, dict):
        return found
    raise CheckpointError(
        f"{path} cannot be read: {why}",
        hint="restore it from the checkpoint",
        code=ErrorCode.CORRUPT_FILE,
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _whole(config: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of the entries that is a whole number."""
    return next((config[name] for name in names if _is_whole(config.get(name))), None)


def make_genai_config(
    settings: GenerationSettings, signature: Signature, loop: DecoderLoop, model_file: str
) -> dict[str, Any]:
    """Return `genai_config.json` of a decoder.

    Heads and sizes are those of the cache. A text may be as long as the domain of the verdict
    allows, which can be less than the positions of the model.

    Raises:
        UsageError: onnxruntime-genai has no settings for such a cache.
    """
    form = _cache_form(signature, loop)
    inputs = {"input_ids": loop.ids, "attention_mask": loop.mask, "position_ids": loop.positions}
    part = _describe_part(settings, model_file, form, len(loop.cache) // 2)
    part["inputs"] = {
        **{name: value for name, value in inputs.items() if value is not None},
        **_name_cache("past", PAST),
    }
    part["outputs"] = {"logits": loop.logits, **_name_cache("present", PRESENT)}
    return _complete_config(settings, longest_text(signature, loop), _TYPE, {"decoder": part})


def make_whisper_config(
    settings: GenerationSettings, signature: Signature, encoder_file: str, decoder_file: str
) -> dict[str, Any]:
    """Return `genai_config.json` of a Whisper, whose encoder makes the cross cache.

    Args:
        settings: of the checkpoint.
        signature: of the decoder.
        encoder_file: the file name of the encoder.
        decoder_file: that of the decoder.

    Raises:
        UsageError: onnxruntime-genai has no settings for such a cache.
    """
    loop = DecoderLoop.find([one.name for one in signature.inputs], signature.outputs)
    if loop is None or not loop.cache:
        raise _cache_error("its decoder has no cache")
    form, layers = _cache_form(signature, loop, ".decoder"), len(loop.cache) // 2
    own = replace(settings, heads=form[0])  # config.json has those of encoder and decoder apart
    encoder, decoder = (
        _describe_part(own, file, form, layers) for file in (encoder_file, decoder_file)
    )
    encoder["inputs"] = {"audio_features": "input_features"}
    encoder["outputs"] = {
        "encoder_hidden_states": "last_hidden_state",
        **_name_cache("cross_present", PRESENT, ".encoder"),
    }
    decoder["inputs"] = {
        "input_ids": loop.ids,
        **_name_cache("past", PAST, ".decoder"),
        **_name_cache("cross_past", PAST, ".encoder"),
    }
    decoder["outputs"] = {"logits": loop.logits, **_name_cache("present", PRESENT, ".decoder")}
    parts = {"encoder": encoder, "decoder": decoder}
    return _complete_config(settings, longest_text(signature, loop), WHISPER, parts)


def _name_cache(field_prefix: str, prefix: str, middle: str = "") -> dict[str, str]:
    """Return the names of keys and values, where `%d` stands for the layer."""
    kinds = ("key", "value")
    return {f"{field_prefix}_{kind}_names": f"{prefix}.%d{middle}.{kind}" for kind in kinds}


def _describe_part(
    settings: GenerationSettings, file: str, form: tuple[int, int], layers: int
) -> dict[str, Any]:
    """Return the fields of a decoder or encoder without its tensors; `form` is heads and size."""
    sizes = {"hidden_size": settings.hidden, "num_attention_heads": settings.heads}
    return {
        "session_options": {"log_id": ONNXRUNTIME_GENAI, "provider_options": []},
        "filename": file,
        "head_size": form[1],
        **{name: value for name, value in sizes.items() if value is not None},
        "num_key_value_heads": form[0],
        "num_hidden_layers": layers,
    }


def _complete_config(
    settings: GenerationSettings, longest: int, kind: str, parts: Mapping[str, Any]
) -> dict[str, Any]:
    context = settings.positions or longest
    tokens = {
        "bos_token_id": settings.begin,
        "eos_token_id": list(settings.ends) if len(settings.ends) != 1 else settings.ends[0],
        "pad_token_id": settings.pad,
    }
    return {
        "model": {
            "type": kind,
            **{name: value for name, value in tokens.items() if value not in (None, [])},
            "vocab_size": settings.vocabulary,
            "context_length": context,
            **parts,
        },
        "search": {
            "do_sample": False,
            **settings.search,
            "max_length": min(context, longest),
            "past_present_share_buffer": False,
        },
    }


def longest_text(signature: Signature, loop: DecoderLoop) -> int:
    """Return the most tokens of a prompt and its continuation in the domain."""
    specs = {spec.name: spec for spec in signature.inputs}
    past = specs[loop.cache[0].past].dims[2].high
    longest = past + 1  # the last step has one token after the longest past
    return longest if loop.mask is None else min(longest, specs[loop.mask].dims[1].high)


def _cache_form(signature: Signature, loop: DecoderLoop, middle: str = "") -> tuple[int, int]:
    """Return heads and size of the keys and values, which are the same in all layers."""
    specs = {spec.name: spec for spec in signature.inputs}
    forms = {(specs[one.past].dims[1].opt, specs[one.past].dims[3].opt) for one in loop.cache}
    layers, kinds = range(len(loop.cache) // 2), ("key", "value")
    names = {f"{PAST}.{layer}{middle}.{kind}" for layer in layers for kind in kinds}
    if names != {one.past for one in loop.cache}:
        raise _cache_error("its cache is not of a key and a value for each layer")
    if len(forms) != 1:
        shown = ", ".join(f"{heads} of size {size}" for heads, size in sorted(forms))
        raise _cache_error(f"its keys and values have several forms: {shown} heads")
    return forms.pop()


def _cache_error(why: str) -> UsageError:
    return UsageError(
        f"{ONNXRUNTIME_GENAI} cannot run it: {why}",
        hint="run it with onnxruntime, in a loop of your own",
        code=ErrorCode.UNSUPPORTED,
    )
