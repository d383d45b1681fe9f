"""Models of transformers for coverage.py: a class, its config's values, its inputs. Unmodified.

No wrapper, the library's own attention implementation and cache setting: what a user gets who
writes `Model(Config(...))`. Nothing is downloaded; transformers is imported when a case is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from modelc.tests.nets.cases import Case
from modelc.tests.nets.transformers_configs import CONFIGS

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

_HEAD = re.compile("For(?=[A-Z])")  # BertForMaskedLM, not PoolFormer
Values = Mapping[str, object]
IDS = "input_ids:int64[batch=1..4,seq=2..24]{2..99}"
MASK = "attention_mask:int64[batch=1..4,seq=2..24]{0..1}"
TEXT = (IDS, MASK)
LANGUAGE = {  # the values of a small encoder; decoders of Llama's kind have their own
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "image_size": 32, "patch_size": 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Part:
    """A config inside a config, as the backbone of a detector; built when its owner is."""

    config: str
    values: Values


def configured(model: str, config: str, values: Values) -> nn.Module:
    """`Model(Config(**values))`; a dotted model is looked up below `transformers.models`."""
    place, _, name = model.rpartition(".")
    holder = import_module(f"transformers.models.{place}" if place else "transformers")
    built: nn.Module = getattr(holder, name)(_config(config, values))
    return built


def _config(name: str, values: Values) -> PreTrainedConfig:
    library = import_module("transformers")
    given = {
        key: _config(value.config, value.values) if isinstance(value, Part) else value
        for key, value in values.items()
    }
    made: PreTrainedConfig = getattr(library, name)(**given)
    return made


def case(
    name: str,
    family: str,
    model: str,
    values: Values,
    inputs: Sequence[str],
    *,
    config: str = "",
) -> Case:
    """A case; the config's class is the model's up to `For...` or `Model` where none is given."""
    stem = _HEAD.split(model.rpartition(".")[2])[0].removesuffix("Model")
    build = partial(configured, model, config or f"{stem}Config", values)
    return Case(name=name, family=family, build=build, inputs=tuple(inputs))


def known(name: str) -> dict[str, object]:
    """The config values that the zoo of judge.py has for the same architecture."""
    return dict(CONFIGS[name].values)
