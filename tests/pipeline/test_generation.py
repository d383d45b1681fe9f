"""The loop in docs/checkpoints.md gives the tokens that transformers' own generate gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run

pytestmark = [pytest.mark.slow, pytest.mark.needs("onnx")]
transformers: Any = pytest.importorskip("transformers")

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
PROMPTS = {
    "as in the page": ([[5, 17, 42, 9]], [[1, 1, 1, 1]]),
    "one token": ([[5]], [[1]]),
    "padded on the left": ([[0, 0, 42, 9], [5, 17, 3, 8]], [[0, 0, 1, 1], [1, 1, 1, 1]]),
}


@pytest.fixture(scope="module")
def generating(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with `prompt` and `step`, and the model that they were made from."""
    import torch

    from modelc.checkpoints.huggingface_folder import silence_transformers

    folder = tmp_path_factory.mktemp("generating")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=16, max_position_embeddings=32,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    with silence_transformers():
        model.save_pretrained(folder / "llama")
        for name, task in (("prompt", "prefill"), ("step", "with-past")):
            source = Source(
                checkpoint=folder / "llama", model_args={"task": f"text-generation-{task}"}
            )
            found = run(Order(source=source, wanted=(Wanted(target="onnx"),), out=folder / name))
            assert found.passed
    return folder, model


@pytest.mark.parametrize("case", PROMPTS)
def test_the_loop_of_the_page_generates_the_tokens_of_transformers(
    generating: tuple[Path, Any], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    folder, model = generating
    ids, mask = PROMPTS[case]
    code = next(one for one in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
                if "past_key_values" in one)  # fmt: skip
    given = code.replace("np.array([[5, 17, 42, 9]])", f"np.array({ids})")
    given = given.replace("np.ones_like(ids)  #", f"np.array({mask})  #")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(given, names)
    wanted = model.generate(
        torch.tensor(ids), attention_mask=torch.tensor(mask), max_new_tokens=20, do_sample=False
    )
    assert names["ids"].shape == (len(ids), len(ids[0]) + 20)
    assert np.array_equal(names["ids"], wanted.numpy())
