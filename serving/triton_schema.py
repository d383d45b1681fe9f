"""Triton's `config.pbtxt` as protobuf messages, which are described here by name and type.

The text format needs no field numbers, so that no generated code has to be installed. Fields are
those of `model_config.proto` of July 2026; `tests/serving` compares them with Triton's own.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ..core.errors import ErrorCode, UsageError, first_line

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto

PACKAGE = "inference"
MAX_CONFIG_BYTES = 1 << 20  # a config with a thousand tensors is 100 kB

# An enum is `enum NAME: values`, a message `NAME: fields` with the name of its parent before a dot.
# A field is `name:type`, `name:type*` if repeated, `name:type>value` for a map, and `name:type|one`
# in the oneof of that name. Types are s(tring), b(ool), i(nt), f(loat), or a name from the root.
_SCHEMA = """
enum DataType: TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32 \
 TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16
ModelRateLimiter: resources:ModelRateLimiter.Resource* priority:i
ModelRateLimiter.Resource: name:s global:b count:i
ModelInstanceGroup: name:s kind:ModelInstanceGroup.Kind count:i rate_limiter:ModelRateLimiter gpus:i* \
 secondary_devices:ModelInstanceGroup.SecondaryDevice* profile:s* passive:b host_policy:s
enum ModelInstanceGroup.Kind: KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL
ModelInstanceGroup.SecondaryDevice: kind:ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind device_id:i
enum ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind: KIND_NVDLA
ModelTensorReshape: shape:i*
ModelInput: name:s data_type:DataType format:ModelInput.Format dims:i* reshape:ModelTensorReshape is_shape_tensor:b \
 allow_ragged_batch:b optional:b is_non_linear_format_io:b
enum ModelInput.Format: FORMAT_NONE FORMAT_NHWC FORMAT_NCHW
ModelOutput: name:s data_type:DataType dims:i* reshape:ModelTensorReshape label_filename:s is_shape_tensor:b \
 is_non_linear_format_io:b
BatchInput: kind:BatchInput.Kind target_name:s* data_type:DataType source_input:s*
enum BatchInput.Kind: BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO \
 BATCH_MAX_ELEMENT_COUNT_AS_SHAPE BATCH_ITEM_SHAPE BATCH_ITEM_SHAPE_FLATTEN
BatchOutput: target_name:s* kind:BatchOutput.Kind source_input:s*
enum BatchOutput.Kind: BATCH_SCATTER_WITH_INPUT_SHAPE
ModelVersionPolicy: latest:ModelVersionPolicy.Latest|policy_choice all:ModelVersionPolicy.All|policy_choice \
 specific:ModelVersionPolicy.Specific|policy_choice
ModelVersionPolicy.Latest: num_versions:i
ModelVersionPolicy.All:
ModelVersionPolicy.Specific: versions:i*
ModelOptimizationPolicy: graph:ModelOptimizationPolicy.Graph priority:ModelOptimizationPolicy.ModelPriority \
 cuda:ModelOptimizationPolicy.Cuda execution_accelerators:ModelOptimizationPolicy.ExecutionAccelerators \
 input_pinned_memory:ModelOptimizationPolicy.PinnedMemoryBuffer \
 output_pinned_memory:ModelOptimizationPolicy.PinnedMemoryBuffer gather_kernel_buffer_threshold:i eager_batching:b
enum ModelOptimizationPolicy.ModelPriority: PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN
ModelOptimizationPolicy.Graph: level:i
ModelOptimizationPolicy.Cuda: graphs:b busy_wait_events:b graph_spec:ModelOptimizationPolicy.Cuda.GraphSpec* \
 output_copy_stream:b
ModelOptimizationPolicy.Cuda.GraphSpec: batch_size:i input:s>ModelOptimizationPolicy.Cuda.GraphSpec.Shape \
 graph_lower_bound:ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound
ModelOptimizationPolicy.Cuda.GraphSpec.Shape: dim:i*
ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound: batch_size:i \
 input:s>ModelOptimizationPolicy.Cuda.GraphSpec.Shape
ModelOptimizationPolicy.ExecutionAccelerators: \
 gpu_execution_accelerator:ModelOptimizationPolicy.ExecutionAccelerators.Accelerator* \
 cpu_execution_accelerator:ModelOptimizationPolicy.ExecutionAccelerators.Accelerator*
ModelOptimizationPolicy.ExecutionAccelerators.Accelerator: name:s parameters:s>s
ModelOptimizationPolicy.PinnedMemoryBuffer: enable:b
ModelQueuePolicy: timeout_action:ModelQueuePolicy.TimeoutAction default_timeout_microseconds:i \
 allow_timeout_override:b max_queue_size:i
enum ModelQueuePolicy.TimeoutAction: REJECT DELAY
ModelDynamicBatching: preferred_batch_size:i* max_queue_delay_microseconds:i preserve_ordering:b priority_levels:i \
 default_priority_level:i default_queue_policy:ModelQueuePolicy priority_queue_policy:i>ModelQueuePolicy
ModelSequenceBatching: direct:ModelSequenceBatching.StrategyDirect|strategy_choice \
 oldest:ModelSequenceBatching.StrategyOldest|strategy_choice max_sequence_idle_microseconds:i \
 control_input:ModelSequenceBatching.ControlInput* state:ModelSequenceBatching.State* iterative_sequence:b
ModelSequenceBatching.Control: kind:ModelSequenceBatching.Control.Kind int32_false_true:i* fp32_false_true:f* \
 bool_false_true:b* data_type:DataType
enum ModelSequenceBatching.Control.Kind: CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END \
 CONTROL_SEQUENCE_CORRID
ModelSequenceBatching.ControlInput: name:s control:ModelSequenceBatching.Control*
ModelSequenceBatching.InitialState: data_type:DataType dims:i* zero_data:b|state_data data_file:s|state_data name:s
ModelSequenceBatching.State: input_name:s output_name:s data_type:DataType dims:i* \
 initial_state:ModelSequenceBatching.InitialState* use_same_buffer_for_input_output:b use_growable_memory:b
ModelSequenceBatching.StrategyDirect: max_queue_delay_microseconds:i minimum_slot_utilization:f
ModelSequenceBatching.StrategyOldest: max_candidate_sequences:i preferred_batch_size:i* \
 max_queue_delay_microseconds:i preserve_ordering:b
ModelEnsembling: step:ModelEnsembling.Step* max_inflight_requests:i
ModelEnsembling.Step: model_name:s model_version:i input_map:s>s output_map:s>s model_namespace:s
ModelParameter: string_value:s
ModelWarmup: name:s batch_size:i inputs:s>ModelWarmup.Input count:i
ModelWarmup.Input: data_type:DataType dims:i* zero_data:b|input_data_type random_data:b|input_data_type \
 input_data_file:s|input_data_type
ModelOperations: op_library_filename:s*
ModelTransactionPolicy: decoupled:b
ModelRepositoryAgents: agents:ModelRepositoryAgents.Agent*
ModelRepositoryAgents.Agent: name:s parameters:s>s
ModelResponseCache: enable:b
ModelMetrics: metric_control:ModelMetrics.MetricControl*
ModelMetrics.MetricControl: metric_identifier:ModelMetrics.MetricControl.MetricIdentifier \
 histogram_options:ModelMetrics.MetricControl.HistogramOptions|metric_options
ModelMetrics.MetricControl.MetricIdentifier: family:s
ModelMetrics.MetricControl.HistogramOptions: buckets:f*
ModelConfig: name:s platform:s backend:s runtime:s version_policy:ModelVersionPolicy max_batch_size:i \
 input:ModelInput* output:ModelOutput* batch_input:BatchInput* batch_output:BatchOutput* \
 optimization:ModelOptimizationPolicy dynamic_batching:ModelDynamicBatching|scheduling_choice \
 sequence_batching:ModelSequenceBatching|scheduling_choice ensemble_scheduling:ModelEnsembling|scheduling_choice \
 instance_group:ModelInstanceGroup* default_model_filename:s cc_model_filenames:s>s metric_tags:s>s \
 parameters:s>ModelParameter model_warmup:ModelWarmup* model_operations:ModelOperations \
 model_transaction_policy:ModelTransactionPolicy model_repository_agents:ModelRepositoryAgents \
 response_cache:ModelResponseCache model_metrics:ModelMetrics
"""  # noqa: E501 - a table

_SCALARS = {"s": "TYPE_STRING", "b": "TYPE_BOOL", "i": "TYPE_INT64", "f": "TYPE_DOUBLE"}


@cache
def config_class() -> Any:
    """Return the message class of a model configuration."""
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="modelc_model_config.proto", package=PACKAGE, syntax="proto3")
    lines = [line.partition(":") for line in _SCHEMA.replace("\\\n", "").split("\n") if line]
    known: dict[str, DescriptorProto] = {}
    enums = {name.removeprefix("enum ") for name, _, _ in lines if name.startswith("enum ")}
    for name, _, _ in lines:
        if name not in {f"enum {one}" for one in enums}:
            parent, _, own = name.rpartition(".")
            place = known[parent].nested_type if parent else file.message_type
            known[name] = place.add(name=own)
    for name, _, content in lines:
        if name.startswith("enum "):
            parent, _, own = name.removeprefix("enum ").rpartition(".")
            listed = known[parent].enum_type if parent else file.enum_type
            _fill_enum(listed.add(name=own), content.split())
        else:
            _fill_message(known[name], content.split(), enums, name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.ModelConfig"))


def _fill_enum(enum: EnumDescriptorProto, values: list[str]) -> None:
    for number, value in enumerate(values):
        enum.value.add(name=value, number=number)


def _fill_message(
    message: DescriptorProto, fields: list[str], enums: set[str], message_name: str
) -> None:
    """Add the fields; a map is a repeated message of a key and a value."""
    choices: list[str] = []
    for number, text in enumerate(fields, start=1):
        name, _, kind = text.partition(":")
        kind, _, choice = kind.partition("|")
        repeated, kind = kind.endswith("*"), kind.removesuffix("*")
        key, is_map, value = kind.partition(">")
        if is_map:
            entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            _add_field(entry, "key", 1, key, enums)
            _add_field(entry, "value", 2, value, enums)
            kind, repeated = f"{message_name}.{entry.name}", True
        field = _add_field(message, name, number, kind, enums)
        field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        if choice:
            if choice not in choices:
                choices.append(choice)
                message.oneof_decl.add(name=choice)
            field.oneof_index = choices.index(choice)


def _add_field(message: DescriptorProto, name: str, number: int, kind: str, enums: set[str]) -> Any:
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = getattr(field, _SCALARS[kind])
    else:
        field.type = field.TYPE_ENUM if kind in enums else field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
    return field


def write_config(config: Any) -> bytes:
    """Return the text of a configuration."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config, as_utf8=True)
    return text.encode()


def read_config(raw: bytes, name: str) -> tuple[Any, str]:
    """Return the configuration in a text, and why a part of it was left out, if one was.

    Args:
        raw: the text.
        name: of the file, for messages.

    Raises:
        UsageError: it is not a text of this message.
    """
    from google.protobuf import text_format

    def parse(*, lenient: bool) -> Any:
        return text_format.Parse(raw.decode(), config_class()(), allow_unknown_field=lenient)

    try:
        return parse(lenient=False), ""
    except (text_format.ParseError, UnicodeDecodeError, RecursionError, ValueError) as strict:
        try:
            return parse(lenient=True), first_line(strict)
        except (text_format.ParseError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise UsageError(
                f"{name} is not a model configuration of Triton: {first_line(error)}",
                hint="write it as protobuf text, as Triton's model_configuration.md describes",
                code=ErrorCode.CORRUPT_FILE,
            ) from error
