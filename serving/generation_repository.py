"""Write and check models of onnxruntime-genai and openvino-genai: a decoder with its tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.dims import Dim, default_opt
from ..core.errors import (
    CheckpointError,
    ErrorCode,
    Hint,
    ModelcError,
    Option,
    UsageError,
    first_line,
)
from ..core.generation import DecoderLoop, find_cached_loop
from ..core.records import Artifact, FileRecord, sha256_of
from ..core.signature import Signature
from ..runtimes.generation_files import (
    GENAI_CONFIG,
    GENERATION_CONFIG,
    MODEL_CONFIG,
    ONNXRUNTIME_GENAI,
    OPENVINO_MODEL,
    TOKENIZER_FILES,
    WHISPER,
    GenerationSettings,
    longest_text,
    make_genai_config,
    read_settings,
)
from .describe_models import DescribeRequest
from .packed_tokenizers import (
    MADE_TOKENIZERS,
    convert_tokenizer,
    note_onnx_tokenizer,
    note_tokenizer,
)
from .repository_reader import CheckedVersion, RepositoryReader
from .repository_records import FaultCode, ModelInterface, ServedModel
from .version_folders import PlannedFile, list_versions
from .whisper_pack import is_speech_part, join_parts, list_notes, make_speech_config

ONNX_TARGETS, OPENVINO_TARGETS = ("onnx",), ("openvino",)
_TOKENIZER_ROLE = "tokenizer"
_PARTS = ("decoder", "encoder")  # of a configuration; the second of a Whisper alone
_MERGED = "--model-arg task=text-generation-merged"


def decline_onnx(artifact: Artifact, signature: Signature) -> tuple[str, str]:  # noqa: ARG001 - as the field
    """Return why onnxruntime-genai cannot run an artifact, and what to do; empty if it can."""
    if find_cached_loop(signature) is not None or is_speech_part(signature):
        return "", ""
    if any(
        ".encoder." in name
        for name in (*signature.outputs, *(spec.name for spec in signature.inputs))
    ):
        why = f"of encoder-decoders, {ONNXRUNTIME_GENAI} runs {WHISPER} alone"
        return why, "run it with onnxruntime: --to onnx"
    return "it is no decoder with a cache", f"export its folder with {_MERGED}"


def decline_openvino(artifact: Artifact, signature: Signature) -> tuple[str, str]:  # noqa: ARG001 - as the field
    """Return why openvino-genai cannot run an artifact, and what to do; empty if it can."""
    if not artifact.is_stateful:
        return "its cache is not in states", f"export it with --stateful {_MERGED}"
    return "", ""


def decline_states(artifact: Artifact, signature: Signature) -> tuple[str, str]:  # noqa: ARG001 - as the field
    """Return why a server that may mix requests cannot run an artifact; empty if it can."""
    if artifact.is_stateful:
        return "it keeps states between requests", "pack it with --to openvino-genai"
    return "", ""


def prepare_onnx(models: Sequence[ServedModel]) -> tuple[ServedModel, ...]:
    """Add `genai_config.json` and the checkpoint's own files to the models.

    Raises:
        CheckpointError: a checkpoint is not on this disk, or is another one.
        UsageError: onnxruntime-genai has no settings for the cache of a model.
    """
    found = []
    for model in join_parts(models):
        folder = _checkpoint_of(model)
        settings = read_settings(folder)
        if not settings.ends:
            raise UsageError(
                f"{folder} names no eos_token_id, without which onnxruntime-genai ends at token 0",
                hint=f"add it to {folder / GENERATION_CONFIG}", code=ErrorCode.UNSUPPORTED,
            )  # fmt: skip
        config = _make_config(settings, model)
        file = PlannedFile(name=GENAI_CONFIG, content=json.dumps(config, indent=2).encode() + b"\n")
        beside = (*model.beside, file, *_plan_texts(folder))
        notes = (*_note_texts(folder, settings, model), *note_onnx_tokenizer(folder))
        more = list_notes(settings) if model.twins else ()
        found.append(_add_beside(model, beside, (*notes, *more)))
    return tuple(found)


def prepare_openvino(models: Sequence[ServedModel]) -> tuple[ServedModel, ...]:
    """Add the checkpoint's own files to the models, and its tokenizer as IRs.

    Raises:
        CheckpointError: a checkpoint is not on this disk, or is another one.
    """
    found = []
    for model in models:
        folder = _checkpoint_of(model)
        made, missing = convert_tokenizer(folder)
        beside = (*_plan_texts(folder), *(_plan_content(*one) for one in made.items()))
        files = " and ".join(f"{name}.xml" for name in MADE_TOKENIZERS)
        notes = (f"{files} are missing: {missing}",) if missing else ()
        texts = _note_texts(folder, read_settings(folder), model)
        found.append(_add_beside(model, beside, (*texts, *notes)))
    return tuple(found)


def _add_beside(
    model: ServedModel, beside: tuple[PlannedFile, ...], notes: tuple[str, ...]
) -> ServedModel:
    record = replace(model.record, notes=(*model.record.notes, *notes))
    return replace(model, record=record, beside=beside)


def plan_onnx_files(model: ServedModel) -> Iterator[PlannedFile]:
    """Yield the ONNX files, which keep their names, and what is beside them."""
    for file in () if model.twins else model.files:
        name = Path(file.name).name
        yield PlannedFile(name=name, source=model.folder / file.name, record=file)
    yield from model.beside


def plan_openvino_files(model: ServedModel) -> Iterator[PlannedFile]:
    """Yield the IR as `openvino_model.xml` and `.bin`, and what is beside it."""
    for file in model.files:
        name = Path(OPENVINO_MODEL).with_suffix(Path(file.name).suffix).name
        yield PlannedFile(name=name, source=model.folder / file.name, record=file)
    yield from model.beside


def _checkpoint_of(model: ServedModel) -> Path:
    """Return the folder of the checkpoint, with the config that the artifact was made from.

    Raises:
        CheckpointError: it is not on this disk, or is another one.
    """
    place = model.checkpoint
    hint = Hint("give its place: ", Option("checkpoint", "FOLDER"))
    if place is None or not (place / MODEL_CONFIG).is_file():
        what = "is not on this disk" if place is None else f"{place} has no {MODEL_CONFIG}"
        raise CheckpointError(
            f"{model.name}: the checkpoint, whose tokenizer is packed, {what}",
            hint=hint, option="checkpoint", code=ErrorCode.NOT_FOUND,
        )  # fmt: skip
    if model.config_digest and sha256_of(place / MODEL_CONFIG) != model.config_digest:
        raise CheckpointError(
            f"{model.name}: {place / MODEL_CONFIG} is not the one that it was exported from",
            hint=hint, option="checkpoint", code=ErrorCode.FILE_CHANGED,
        )  # fmt: skip
    return place


def _make_config(settings: GenerationSettings, model: ServedModel) -> dict[str, Any]:
    if model.twins:
        return make_speech_config(model, settings)
    loop = find_cached_loop(model.signature)
    if loop is None:
        raise UsageError("it is no decoder with a cache", hint=f"export with {_MERGED}")
    return make_genai_config(settings, model.signature, loop, Path(model.files[0].name).name)


def _plan_texts(folder: Path) -> Iterator[PlannedFile]:
    """Yield the config, generation settings and tokenizer of a checkpoint, where it has them."""
    for name in (MODEL_CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES):
        path = folder / name
        if path.is_file():
            record = FileRecord(
                name=name, size=path.stat().st_size, sha256=sha256_of(path), role=_TOKENIZER_ROLE
            )
            yield PlannedFile(name=name, source=path, record=record)


def _plan_content(name: str, content: bytes) -> PlannedFile:
    digest = hashlib.sha256(content).hexdigest()
    record = FileRecord(name=name, size=len(content), sha256=digest, role=_TOKENIZER_ROLE)
    return PlannedFile(name=name, content=content, record=record)


def _note_texts(folder: Path, settings: GenerationSettings, model: ServedModel) -> Iterator[str]:
    signature = model.signature
    loop = DecoderLoop.find([spec.name for spec in signature.inputs], signature.outputs)
    yield from note_tokenizer(folder, settings)
    if not settings.ends:
        yield f"{MODEL_CONFIG} names no eos_token_id: texts end at their greatest length"
    longest = 0 if loop is None else longest_text(signature, loop)
    if longest < (settings.positions or 0):
        yield (
            f"the verdict covers texts of {longest} tokens, the model has {settings.positions} "
            f"positions: {_advise_longer(model.signature, settings.positions or 0)}"
        )


def _advise_longer(signature: Signature, positions: int) -> str:
    """Return how to state a longer past; with an example where prompts leave room for one."""
    loop = find_cached_loop(signature)
    specs = {spec.name: spec for spec in signature.inputs}
    if loop is not None:
        spec = specs[loop.cache[0].past]
        rows, heads, past, size = spec.dims
        high = positions - specs[loop.ids].dims[1].high
        if high > past.high:
            longer = Dim(name=past.name, low=past.low, opt=default_opt(past.low, high), high=high)
            wider = replace(spec, dims=(rows, heads, longer, size))
            return f"state a longer past when you export, as --input '{wider}'"
    return "state a longer past and a shorter prompt when you export"


def check_onnx(reader: RepositoryReader) -> tuple[str, ...]:
    """Check the models of onnxruntime-genai in a folder; return their names."""
    return _check(reader, GENAI_CONFIG, "onnx", _compare_config)


def check_openvino(reader: RepositoryReader) -> tuple[str, ...]:
    """Check the models of openvino-genai in a folder; return their names."""
    return _check(reader, OPENVINO_MODEL, "openvino", _compare_states)


def _check(
    reader: RepositoryReader,
    marker: str,
    target: str,
    compare: Callable[[RepositoryReader, CheckedVersion, ModelInterface], None],
) -> tuple[str, ...]:
    found: list[CheckedVersion] = []
    names = []
    for folder in reader.list_models():
        numbers = [one for one in list_versions(folder) if (folder / str(one) / marker).exists()]
        names += [folder.name] if numbers else []
        for place in (folder / str(number) for number in numbers):
            at, before = reader.place_of(place), len(reader.faults)
            record = reader.load_record(place)
            files = (marker,) if target == "openvino" else _list_model_files(reader, place, at)
            for name in files if len(reader.faults) == before else ():
                path = reader.find_file(place, name, at)
                if path is not None and reader.is_recorded(place, path, record):
                    request = DescribeRequest(path=path, target=target)
                    found.append(
                        CheckedVersion(model=at[0], version=at[1], request=request, record=record)
                    )
    for one, interface in reader.describe(found):
        compare(reader, one, interface)
    return tuple(names)


def _read_config(
    reader: RepositoryReader, place: Path, at: tuple[str, str]
) -> dict[str, Any] | None:
    raw = reader.read_text(place, GENAI_CONFIG, at)
    if raw is None:
        return None
    try:
        found = json.loads(raw)
        files = [found["model"][part]["filename"] for part in _PARTS if part in found["model"]]
        if files and all(isinstance(one, str) for one in files):
            return dict(found)
        message = f"{GENAI_CONFIG}: the filename of its decoder or encoder is no text"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{GENAI_CONFIG} cannot be read: {type(error).__name__} {first_line(error)}"
    reader.add(FaultCode.CONFIG, at, message, "correct it, or pack it again", GENAI_CONFIG)
    return None


def _list_model_files(
    reader: RepositoryReader, place: Path, at: tuple[str, str]
) -> tuple[str, ...]:
    config = _read_config(reader, place, at)
    model = {} if config is None else config["model"]
    return tuple(model[part]["filename"] for part in _PARTS if part in model)


def _compare_config(
    reader: RepositoryReader, one: CheckedVersion, interface: ModelInterface
) -> None:
    """Compare the `model` of the configuration with that of the files beside it.

    `search` is the operator's, but for a length beyond the model's positions.
    """
    at, place = (one.model, one.version), one.request.path.parent
    config = _read_config(reader, place, at)
    if config is None:
        return
    model, file = config["model"], one.request.path.name
    part = next(part for part in _PARTS if model.get(part, {}).get("filename") == file)
    _compare_tensors(reader, at, model[part], interface)
    if part != _PARTS[0]:
        return
    try:
        settings = read_settings(place)
    except ModelcError as error:
        reader.add(FaultCode.CONFIG, at, error.message, "pack it again", MODEL_CONFIG)
        return
    search = config.get("search", {})
    ends = model.get("eos_token_id", [])
    most = settings.positions
    equal = {
        "eos_token_id": (tuple(ends) if isinstance(ends, list) else (ends,), settings.ends),
        "vocab_size": (model.get("vocab_size"), settings.vocabulary),
        "bos_token_id": (model.get("bos_token_id"), settings.begin),
        "pad_token_id": (model.get("pad_token_id"), settings.pad),
    }
    lengths = {
        "context_length": model.get("context_length", 0),
        "max_length": search.get("max_length", 0) if isinstance(search, dict) else search,
    }
    wrong: dict[str, tuple[object, object]]
    wrong = {name: one for name, one in equal.items() if one[0] != one[1]}
    for name, length in lengths.items():
        if type(length) is not int or length < 0 or (most is not None and length > most):
            wrong[name] = (length, "any number" if most is None else most)
    for name, (given, own) in wrong.items():
        message = f"{name} is {_plain(given)}, in the checkpoint {_plain(own)}"
        reader.add(FaultCode.CONFIG, at, message, "write that of the checkpoint", name)


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)[:80]


def _compare_tensors(
    reader: RepositoryReader,
    at: tuple[str, str],
    decoder: Mapping[str, Any],
    interface: ModelInterface,
) -> None:
    """Compare the names of tensors, and the form of the cache, with those of the file."""
    sides = (("inputs", interface.inputs), ("outputs", interface.outputs))
    layers = decoder.get("num_hidden_layers")
    most = max(len(interface.inputs), len(interface.outputs))
    count = layers if isinstance(layers, int) and 0 < layers <= most else 0
    for noun, tensors in sides:
        known = {tensor.name: tensor for tensor in tensors}
        listed = _list_names(decoder.get(noun), count)
        for name in sorted(listed.symmetric_difference(known)):
            has, lacks = ("the file", GENAI_CONFIG) if name in known else (GENAI_CONFIG, "the file")
            message = f"{has} has {name[:80]!r} among its {noun}, {lacks} does not"
            hint = f"with {layers} layers, name {', '.join(list(known)[:4])} ..."
            reader.add(FaultCode.TENSOR_NAME, at, message, hint, name[:80])
    form = [decoder.get("num_key_value_heads"), decoder.get("head_size")]
    for tensor in interface.inputs:
        own = [tensor.dims[1], tensor.dims[3]] if len(tensor.dims) == 4 else form  # noqa: PLR2004
        if own != form:
            message = (
                f"{tensor.name} has {own[0]} heads of size {own[1]}, not {form[0]} of {form[1]}"
            )
            reader.add(FaultCode.TENSOR_DIMS, at, message, "write those of the file", tensor.name)
            break


def _list_names(names: object, layers: int) -> set[str]:
    """Return the tensors that a configuration names; `%d` stands for each layer."""
    found = names.values() if isinstance(names, dict) else ()
    return {
        name.replace("%d", str(layer))
        for name in found
        if isinstance(name, str)
        for layer in range(layers if "%d" in name else 1)
    }


def _compare_states(
    reader: RepositoryReader, one: CheckedVersion, interface: ModelInterface
) -> None:
    """Check that the IR keeps its cache in states, and has the tensors of its record."""
    at = (one.model, one.version)
    if "cache" not in interface.facts:
        hint = "export it with --stateful, and pack it again"
        reader.add(FaultCode.BACKEND, at, "the IR does not keep its cache in states", hint)
    recorded = () if one.record is None else one.record.interface.tensors
    names: Sequence[str] = [tensor.name for tensor in recorded]
    for tensor in interface.tensors if recorded else ():
        if tensor.name not in names:
            message = f"the file has a tensor {tensor.name!r} that was not packed"
            reader.add(FaultCode.TENSOR_NAME, at, message, "pack the model again")
