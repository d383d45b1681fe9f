"""A builder config from the options: limits, flags, optimization profiles. Never a precision."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from ...core.errors import ConversionError, Hint, Option
from .options import EngineOptions, HardwareLevel
from .profiles import Profile, profile_text

if TYPE_CHECKING:
    import tensorrt


def make_config(
    trt: ModuleType,
    builder: tensorrt.Builder,
    network: tensorrt.INetworkDefinition,
    options: EngineOptions,
    profiles: tuple[Profile, ...],
) -> tensorrt.IBuilderConfig:
    """The config for one build.

    Raises:
        ConversionError: TensorRT refused a profile.
    """
    config: tensorrt.IBuilderConfig = builder.create_builder_config()
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    config.builder_optimization_level = options.optimization_level
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # or the inspector knows no types
    config.hardware_compatibility_level = _hardware_level(trt, options.hardware_compatible)
    _set_flags(trt, config, options)
    if _is_dynamic(network):
        for profile in profiles:
            _add_profile(builder, network, config, profile)
    return config


def _hardware_level(trt: ModuleType, level: HardwareLevel) -> tensorrt.HardwareCompatibilityLevel:
    match level:
        case HardwareLevel.NONE:
            return trt.HardwareCompatibilityLevel.NONE
        case HardwareLevel.AMPERE_PLUS:
            return trt.HardwareCompatibilityLevel.AMPERE_PLUS
        case HardwareLevel.SAME_COMPUTE_CAPABILITY:
            return trt.HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY


def _set_flags(trt: ModuleType, config: tensorrt.IBuilderConfig, options: EngineOptions) -> None:
    if options.refittable:
        config.set_flag(trt.BuilderFlag.REFIT)
    if options.strip_weights:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
    if options.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if options.weight_streaming:
        config.set_flag(trt.BuilderFlag.WEIGHT_STREAMING)
    if options.tf32:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)


def _is_dynamic(network: tensorrt.INetworkDefinition) -> bool:
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    return any(size < 0 for tensor in inputs for size in tensor.shape)


def _add_profile(
    builder: tensorrt.Builder,
    network: tensorrt.INetworkDefinition,
    config: tensorrt.IBuilderConfig,
    profile: Profile,
) -> None:
    made: tensorrt.IOptimizationProfile = builder.create_optimization_profile()
    ranges = {one.name: one for one in profile}
    for index in range(network.num_inputs):
        tensor: tensorrt.ITensor = network.get_input(index)
        one = ranges.get(tensor.name)
        if tensor.is_shape_tensor:
            raise ConversionError(
                f"TensorRT takes {tensor.name!r} for a shape: a profile would need its values",
                hint="make it a constant of the model, or an input that no shape depends on",
            )
        if one is None:
            raise ConversionError(
                f"the ONNX has an input {tensor.name!r} that the signature has not",
                hint=f"the profile is {profile_text(profile)}",
            )
        try:
            made.set_shape(tensor.name, min=one.low, opt=one.opt, max=one.high)
        except RuntimeError as error:
            raise ConversionError(
                f"TensorRT refused the profile {one}: {error}",
                hint=Hint("see ", Option("profile"), " and ", Option("input")),
                option="profile",
            ) from error
    if not made or config.add_optimization_profile(made) < 0:
        raise ConversionError(
            f"TensorRT refused the profile {profile_text(profile)}",
            hint=Hint("see ", Option("profile"), " and ", Option("input")),
            option="profile",
        )
