"""A CycloneDX 1.6 bill of materials: artifacts, their checkpoint and packages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from ...core.atomic_write import atomic_write
from ...core.contract import EAGER
from ...core.errors import ErrorCode, MissingError, UsageError
from ...core.hub_ids import HubOrigin
from ...core.installation import DISTRIBUTION, hint_for_extra
from ...core.manifest import Manifest
from ...core.records import Artifact, FileRecord
from ..cache.environment import NOT_PACKAGES
from ..hub_source import commit_id
from ..recorded_run import load_manifest
from .artifact_checks import list_failed_checks
from .seals import capture_method, signature_digest, verdict_digest
from .verify_folder import verify_folder

if TYPE_CHECKING:
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component
    from packageurl import PackageURL


def make_bill(folder: Path) -> bytes:
    """Make the bill of a folder, after verifying it.

    Raises:
        UsageError: there is no manifest, or verification fails: the digests in a bill would not be
            those of the files.
        MissingError: the CycloneDX package is not installed.
    """
    manifest = load_manifest(folder)
    wrong = list_failed_checks(verify_folder(folder).checks)
    if wrong:
        first = wrong[0]
        raise UsageError(
            f"{folder} differs from its manifest: {first.of}, {first.what}: {first.detail}",
            hint=f"see modelc verify {folder}, and export again",
            code=ErrorCode.FILE_CHANGED,
        )
    return make_sbom(manifest)


def write_bill(bill: bytes, path: Path) -> Path:
    """Write a bill atomically; replace only an existing bill.

    Raises:
        UsageError: another kind of file exists there, or it cannot be written.
    """
    hint = "give another -o"
    try:
        if path.exists() and not _is_bill(path):
            raise UsageError(
                f"{path} exists and is not a bill of materials",
                hint=hint,
                code=ErrorCode.FILE_EXISTS,
            )
        return atomic_write(path, bill)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint=hint, code=ErrorCode.NOT_WRITABLE
        ) from error


def _is_bill(path: Path) -> bool:
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("bomFormat") == "CycloneDX"


_SOURCE_REF = "checkpoint"


def make_sbom(manifest: Manifest) -> bytes:
    """Encode the bill of materials; equal manifests give equal documents.

    Raises:
        MissingError: the CycloneDX package is not installed.
    """
    if find_spec("cyclonedx") is None:
        raise MissingError(
            "a bill of materials requires the package cyclonedx-python-lib",
            hint=hint_for_extra("sbom"),
            code=ErrorCode.NOT_INSTALLED,
        )
    from cyclonedx.output.json import JsonV1Dot6

    document = json.loads(JsonV1Dot6(_make_bom(manifest)).output_as_string())
    cards = {
        _artifact_ref(artifact): _model_card(artifact, manifest)
        for artifact in _iter_shipped(manifest)
    }
    for component in document["components"]:
        if component["bom-ref"] in cards:
            component["modelCard"] = cards[component["bom-ref"]]
    return json.dumps(document, indent=1).encode() + b"\n"


def _iter_shipped(manifest: Manifest) -> Iterator[Artifact]:
    """Return the artifacts that were not rejected."""
    return (artifact for artifact in manifest.artifacts if not artifact.rejected)


def _artifact_ref(artifact: Artifact) -> str:
    return f"artifact:{artifact.name}"


def _make_bom(manifest: Manifest) -> Bom:
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.tool import ToolRepository

    source, packages = _source_component(manifest), list(_package_components(manifest))
    artifacts = {a.name: _model_component(a, manifest, source) for a in _iter_shipped(manifest)}
    identity = [manifest.created, *(one.digest for one in _iter_shipped(manifest))]
    bill = Bom(
        components=[source, *artifacts.values(), *packages],
        metadata=BomMetaData(
            timestamp=datetime.fromisoformat(manifest.created),
            tools=ToolRepository(components=[_package_component(DISTRIBUTION, manifest.modelc)]),
        ),
        serial_number=uuid5(NAMESPACE_URL, f"modelc:{' '.join(identity)}"),
    )
    by_name = {package.name: package for package in packages}
    for artifact in _iter_shipped(manifest):
        parent = artifacts.get(artifact.made_from)
        used = (by_name[_normalize_name(name)] for name in sorted(artifact.versions))
        bill.register_dependency(artifacts[artifact.name], [parent or source, *used])
    return bill


def _source_component(manifest: Manifest) -> Component:
    """Make the component of the checkpoint, from which the artifacts descend."""
    from cyclonedx.model.component import Component, ComponentType

    checkpoint = manifest.checkpoint
    hub = checkpoint.hub
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=checkpoint.title if hub is None else hub.repo,
        version=checkpoint.digest if hub is None else hub.commit,
        purl=None if hub is None else _make_hub_purl(hub),
        bom_ref=_SOURCE_REF,
        hashes=_hash_list(checkpoint.digest) if len(checkpoint.files) == 1 else None,
        components=_file_components(checkpoint.files, _SOURCE_REF)
        if len(checkpoint.files) > 1
        else None,
        properties=_make_properties(
            {
                "kind": checkpoint.kind,
                "factory": checkpoint.factory,
                "digest": checkpoint.digest,
                "hub": commit_id(hub),
            }
        ),
    )


def _make_hub_purl(hub: HubOrigin) -> PackageURL:
    """Make the package URL of a commit on the hub."""
    from packageurl import PackageURL

    owner, _, name = hub.repo.partition("/")
    return PackageURL("huggingface", owner, name, hub.commit, subpath=hub.place or None)


def _model_component(artifact: Artifact, manifest: Manifest, source: Component) -> Component:
    from cyclonedx.model.component import Component, ComponentType, Pedigree

    verdict = manifest.verdict_of(artifact.name)
    origin = "the checkpoint" if artifact.made_from == EAGER else artifact.made_from
    how = f" by {artifact.capture}" if artifact.capture else ""
    history = f"{artifact.target} in {artifact.precision}, made from {origin}{how}"
    properties = {
        "format": artifact.target,
        "precision": str(artifact.precision),
        "capture": capture_method(artifact, manifest),
        "parent": artifact.parent,
        "parent is": origin,
        "signature_digest": signature_digest(manifest.signature),
        "verdict": "" if verdict is None else str(verdict.state),
        "verdict_digest": "" if verdict is None else verdict_digest(verdict),
    }
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=artifact.files[0].name,
        version=artifact.digest,
        bom_ref=_artifact_ref(artifact),
        hashes=_hash_list(artifact.digest),
        licenses=_licenses(manifest.meta.license),
        components=_file_components(artifact.files[1:], _artifact_ref(artifact)),
        pedigree=Pedigree(ancestors=[_ancestor_component(source)], notes=history),
        properties=_make_properties(properties),
    )


def _licenses(expression: str) -> list[Any] | None:
    """Return the declared licence; None without one."""
    from cyclonedx.factory.license import LicenseFactory

    return [LicenseFactory().make_from_string(expression)] if expression else None


def _ancestor_component(source: Component) -> Component:
    """Copy the checkpoint component without its reference, which must be unique in a document."""
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=source.name,
        version=source.version,
        hashes=source.hashes,
    )


def _file_components(files: Iterable[FileRecord], owner: str) -> list[Component]:
    """Make the components of a model's files, each with its digest."""
    from cyclonedx.model.component import Component, ComponentType

    return [
        Component(
            type=ComponentType.FILE,
            name=file.name,
            bom_ref=f"{owner}/{file.name}",
            hashes=_hash_list(file.sha256),
            properties=_make_properties({"role": file.role}),
        )
        for file in files
    ]


def _package_components(manifest: Manifest) -> Iterator[Component]:
    """Yield the packages that took part, with their recorded versions."""
    found: dict[str, str] = {}
    kept = {n: v for n, v in manifest.environment.items() if n not in NOT_PACKAGES}
    for one in (manifest.needs.packages, kept, *(a.versions for a in _iter_shipped(manifest))):
        found |= {_normalize_name(name): version.partition(" ")[0] for name, version in one.items()}
    yield from (_package_component(name, version) for name, version in sorted(found.items()))


def _normalize_name(name: str) -> str:
    """Normalize the name of a distribution as package indexes do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _package_component(name: str, version: str) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=f"package:{name}",
        purl=PackageURL(type="pypi", name=name, version=version),
    )


def _hash_list(digest: str) -> list[Any]:
    from cyclonedx.model import HashAlgorithm, HashType

    return [HashType(alg=HashAlgorithm.SHA_256, content=digest)]


def _make_properties(values: Mapping[str, str | None]) -> list[Property]:
    from cyclonedx.model import Property

    return [Property(name=f"modelc:{name}", value=value) for name, value in values.items() if value]


def _model_card(artifact: Artifact, manifest: Manifest) -> dict[str, Any]:
    """Describe inputs, outputs, precision, and the verdict as metrics."""
    spec = manifest.signature
    return {
        "modelParameters": {
            "inputs": [{"format": str(one)} for one in spec.inputs],
            "outputs": [{"format": name} for name in spec.outputs],
        },
        "quantitativeAnalysis": {
            "performanceMetrics": list(_model_card_metrics(artifact, manifest))
        },
        "properties": [{"name": "modelc:precision", "value": str(artifact.precision)}],
    }


def _model_card_metrics(artifact: Artifact, manifest: Manifest) -> Iterator[dict[str, str]]:
    """Yield the verdict, its worst figures, and the accuracy if measured."""
    verdict, accuracy = manifest.verdict_of(artifact.name), artifact.accuracy
    if verdict is not None:
        beside = f"{len(verdict.feeds)} feeds, beside eager"
        state = str(verdict.state)
        figures = {"verdict": state, "max_abs": verdict.max_abs, "sqnr_db": verdict.sqnr}
        for name, value in figures.items():
            if value is not None:
                yield {"type": name, "value": str(value), "slice": beside}
    if accuracy is not None:
        labelled = f"{accuracy.samples} labelled samples"
        for name in ("eager", "artifact", "drop"):
            value = str(getattr(accuracy, name))
            yield {"type": f"{accuracy.metric}_{name}", "value": value, "slice": labelled}
