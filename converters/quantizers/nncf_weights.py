"""NNCF's weight compression for OpenVINO: integer weights, float activations, no samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...capture.framework_errors import call_framework
from ...core.contract import Quantized, QuantizeJob
from ...core.kinds import Precision
from ...core.large_arrays import copy_array
from ..installed_packages import package_versions
from ..openvino_weights import list_integer_weights
from .quantization_checks import NothingQuantizedError
from .quantizer_workspace import call_quietly

if TYPE_CHECKING:
    import openvino

METHODS = ("rtn",)
# Weights with one scale. On a tiny Llama with random weights, groups of 32 keep 16.4 dB, of 64 14.2
# and of 128 (NNCF's default) 12.7. Where the rows are no multiple, the largest smaller power of two
# that divides them; INT8 has one scale per channel.
GROUP = 32
_LEAST_GROUP = 8
_FILE = "model.xml"
_LEAST_MAPPED = 1 << 22  # bytes of integers that need not stay in memory


def compress_weights(
    job: QuantizeJob, nncf: Any, model: openvino.Model, excluded: list[str]
) -> Quantized:
    """Compress the weights of `model`, all but those of the `excluded` nodes, and save the IR.

    In INT4, embeddings, convolutions and the last matrix product have 8 bits, as NNCF has it.

    Raises:
        ConversionError: NNCF rejected the model, or it has no layer that can be compressed.
    """
    import openvino

    four = job.precision is Precision.INT4
    size = job.group_size or GROUP
    modes, path = nncf.CompressWeightsMode, job.folder / _FILE
    with _keep_integers_in_files():
        made = call_quietly(
            "NNCF",
            lambda: nncf.compress_weights(
                model,
                mode=modes.INT4_ASYM if four else modes.INT8_ASYM,
                ignored_scope=nncf.IgnoredScope(names=excluded, validate=False)
                if excluded
                else None,
                **_group_settings(nncf, size) if four else {},
            ),
        )
        counts = Counter(stored for _, stored in list_integer_weights(made))
        if not counts[job.precision]:
            reason = f"it compressed no matrix to 4 bits, with groups of {_LEAST_GROUP} or more"
            raise NothingQuantizedError(
                reason if four else "it compressed no weight", kept=bool(job.keep)
            )
        call_framework(
            "OpenVINO's writer",
            lambda: openvino.save_model(made, str(path), compress_to_fp16=False),
        )
    text = f"4 bits in groups of {size}" if four else "8 bits per channel"
    return Quantized(
        path=path,
        versions=package_versions("nncf", "openvino"),
        options={
            "quantizer": "nncf",
            "method": METHODS[0],
            "activations": "float",
            "weights": f"{text}, with zero points",
            "products": ", ".join(f"{counts[one]} in {one}" for one in sorted(counts)),
            "kept": ", ".join(job.keep),
        },
    )


@contextmanager
def _keep_integers_in_files() -> Iterator[None]:
    """Have NNCF's large constants in mapped temporary files, since it holds those of all layers.

    The model must be written within the context: nodes do not keep the arrays whose memory they
    share.
    """
    import openvino
    from nncf.quantization.algorithms.weight_compression import openvino_backend as backend
    from openvino import opset13

    make, held = backend.create_ov_const_from_tensor, []

    def make_mapped(tensor: Any, dtype: Any, name: str | None = None) -> Any:
        node = make(tensor, dtype, name)
        if node.get_byte_size() < _LEAST_MAPPED:
            return node
        data = copy_array(node.data.reshape(-1).view("u1"), _LEAST_MAPPED)
        held.append(data)
        shared = openvino.Tensor(data, node.get_output_shape(0), node.get_element_type())
        return opset13.constant(shared, name=name, shared_memory=True)

    backend.create_ov_const_from_tensor = make_mapped
    try:
        yield
    finally:
        backend.create_ov_const_from_tensor = make


def _group_settings(nncf: Any, size: int) -> dict[str, Any]:
    """Return the settings of groups: NNCF rejects a model with rows that are no multiple."""
    return {
        "group_size": size,
        "advanced_parameters": nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST,
            min_adjusted_group_size=min(_LEAST_GROUP, size),
        ),
    }
