"""The modules that children of the fork server have loaded: what an export to ONNX imports.

Other libraries (OpenVINO, NNCF, ModelOpt, transformers) are imported by the steps that use them:
they start threads, change other libraries, or few models use them. A module that the installed
version of a library does not have is left out.
"""

from __future__ import annotations

MODULES: tuple[str, ...] = (
    "modelc.pipeline.run_order",
    "modelc.pipeline.isolation.worker",
    "modelc.converters.onnx_complex",
    "torch",
    "torch.onnx._internal.exporter._core",
    "torch.onnx._internal.exporter._compat",
    "torch.onnx._internal.exporter._torchlib.ops",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch._functorch.aot_autograd",
    "torch._subclasses.complex_tensor",
    "torch._subclasses.schema_check_mode",
    "torch._export.passes.replace_autocast_with_hop_pass",
    "torch._export.passes.replace_set_grad_with_hop_pass",
    "onnx",
    "onnxscript",
    "onnxscript._framework_apis.torch_2_9",
    "onnxscript.function_libs.torch_lib.ops",
    "onnxscript.rewriter.onnx_fusions",
    "onnxruntime",
    "safetensors.torch",
    "sympy.tensor.tensor",
    "msgspec.json",
)
