"""The cache of the Hugging Face Hub on this disk, read without a network."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ..core.errors import CheckpointError, ErrorCode, MissingError, UsageError
from ..core.hub_ids import HUB_SCHEME, HubId, HubOrigin, is_commit
from ..core.installation import hint_for_extra
from ..core.untrusted_files import is_path_inside
from .checkpoint_files import find_contents

_REVISION_FORBIDS = frozenset(" ~^:?*[\\\x7f")  # as git does


def parse_hub_id(text: str) -> HubId:
    """Read `hf://org/name@revision/place`.

    Raises:
        UsageError: it is not the id of a model on the hub.
        MissingError: huggingface_hub is not installed.
    """
    check_hub_installed(text)
    from huggingface_hub import parse_hf_uri
    from huggingface_hub.errors import HfUriError

    try:
        found = parse_hf_uri(text)
    except HfUriError as error:
        raise _invalid_id_error(text) from error
    revision, place = found.revision or "", found.path_in_repo
    parts = PurePosixPath(place).parts
    inside = is_path_inside(place) and "\\" not in place and place.isprintable()
    if found.type != "model" or (place and not inside):
        raise _invalid_id_error(text)
    if ".." in revision or not revision.isprintable() or _REVISION_FORBIDS & set(revision):
        raise _invalid_id_error(text)
    if revision.startswith(("/", "-", ".")) or revision.endswith("/"):
        raise _invalid_id_error(text)
    return HubId(repo=found.id, revision=revision, place="/".join(parts))


def _invalid_id_error(text: str) -> UsageError:
    return UsageError(
        f"{text} is not the id of a model on the Hugging Face Hub",
        hint=f"write it as {HUB_SCHEME}org/name, {HUB_SCHEME}org/name@revision or "
        f"{HUB_SCHEME}org/name@revision/folder",
        code=ErrorCode.INVALID_VALUE,
    )


def check_hub_installed(text: str) -> None:
    """Check that huggingface_hub can be used.

    Raises:
        MissingError: it is not installed, or too old.
    """
    try:
        from huggingface_hub import parse_hf_uri  # noqa: F401 - of the newer versions
    except ImportError as error:
        name = getattr(error, "name", None) or ""
        if not name.startswith("huggingface_hub"):
            raise
        raise MissingError(
            f"{text} is on the Hugging Face Hub, and huggingface_hub is not installed or too old",
            hint=hint_for_extra("hub"),
        ) from error


def snapshot_folder(origin: HubOrigin) -> Path:
    """Return the folder of a commit in the hub's cache; it need not exist.

    Raises:
        UsageError: the repository or the commit is not valid, as in a manifest that was edited.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    parsed = parse_hub_id(origin.id)
    if not is_commit(parsed.revision) or (parsed.repo, parsed.place) != (origin.repo, origin.place):
        raise _invalid_id_error(origin.id)
    cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
    name = repo_folder_name(repo_id=origin.repo, repo_type="model")
    return cache / name / "snapshots" / origin.commit


def find_cached(origin: HubOrigin) -> Path | None:
    """Return the checkpoint of a commit in the cache; None if it is not there, or not all of it."""
    place = snapshot_folder(origin) / origin.place
    try:
        find_contents(place, with_factory=False)
    except (CheckpointError, OSError):
        return None
    return place


def find_recorded_place(origin: HubOrigin) -> Path | None:
    """Return the checkpoint that a manifest names, as `find_cached` does; None without the library.

    Raises:
        UsageError: the record is not valid.
    """
    try:
        check_hub_installed(origin.id)
    except MissingError:
        return None
    return find_cached(origin)


def resolve_cached(hub: HubId) -> HubOrigin | None:
    """Return the commit that the cache knows a revision by; None if it does not."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionResolutionError

    try:
        found = HfApi().resolve_revision(
            hub.repo, revision=hub.revision or None, local_files_only=True
        )
    except (RevisionResolutionError, OSError):
        return None
    return hub.pin(found.resolved) if is_commit(found.resolved) else None
