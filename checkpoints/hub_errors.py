"""The errors of huggingface_hub as those of modelc: one line, without addresses and tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..core.errors import (
    CheckpointError,
    ErrorCode,
    ModelcError,
    UsageError,
    first_line,
    is_user_error,
    system_error_hint,
)
from ..core.hub_ids import HubId

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

# An address may hold a signature, a user or a password; a header that is not valid has the token.
_SECRET = re.compile(r"\w+://\S+|\bBearer\b.*|\bhf_\w+")
_LOGIN = "log in: hf auth login"
_SERVER_FAULT, _UNAUTHORIZED, _FORBIDDEN, _TOO_MANY = 500, 401, 403, 429  # HTTP


class HubUnreachableError(CheckpointError):
    """The hub did not answer: what is in the cache may be used instead.

    `offline` means that the user asked for it (HF_HUB_OFFLINE).
    """

    offline = False


def translate_hub_error(error: Exception, hub: HubId, doing: str) -> ModelcError:
    """Return modelc's error for one that huggingface_hub raised.

    Args:
        error: what it raised.
        hub: the repository that was asked for.
        doing: what was done, as `download model.safetensors`.
    """
    import httpx2
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return translate_hub_error(error.__cause__, hub, doing)
    if isinstance(error, OfflineModeIsEnabled):
        return offline_error(hub)
    if isinstance(error, HfHubHTTPError):
        return _translate_answer(error, hub, doing)
    if isinstance(error, httpx2.TransportError):
        return HubUnreachableError(
            f"cannot {doing} of {hub.id}: the hub cannot be reached ({_safe_text(error)})",
            hint="check the network, a proxy and HF_ENDPOINT, and run again",
            code=ErrorCode.HUB_UNREACHABLE,
        )
    if isinstance(error, OSError) and error.errno is not None and is_user_error(error):
        return UsageError(
            f"cannot {doing} of {hub.id} to the hub's cache: {error.strerror}",
            hint=f"{system_error_hint(error)}: HF_HOME=FOLDER",
            code=ErrorCode.NOT_WRITABLE,
        )
    return answer_error(hub, doing, _safe_text(error))


def answer_error(hub: HubId, doing: str, why: str) -> CheckpointError:
    """Return the error for a download that broke off, or an answer that is not the hub's."""
    return CheckpointError(
        f"cannot {doing} of {hub.id}: {why}",
        hint="run again; if it stays so, check HF_ENDPOINT and the proxy",
        code=ErrorCode.HUB_UNREACHABLE,
    )


def offline_error(hub: HubId) -> HubUnreachableError:
    """Return the error for a revision that is not in the cache, without a network."""
    revision = f" --revision {hub.revision}" if hub.revision else ""
    error = HubUnreachableError(
        f"{hub.id} is not in the hub's cache, and HF_HUB_OFFLINE forbids to download it",
        hint=f"with a network: HF_HUB_OFFLINE=0 hf download {hub.repo}{revision}",
        code=ErrorCode.HUB_UNREACHABLE,
    )
    error.offline = True
    return error


def _translate_answer(error: HfHubHTTPError, hub: HubId, doing: str) -> ModelcError:
    """Return the error for an answer of the hub that is none of success."""
    from huggingface_hub import errors

    status = error.response.status_code
    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{hub.id} is gated: the hub gives it to those alone whom its authors accept",
            hint=f"ask for access on the page of {hub.repo}, then {_LOGIN}",
            code=ErrorCode.HUB_ACCESS,
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return UsageError(
            f"the hub has no model {hub.repo}, or it is private",
            hint=f"check the name; for a private model, {_LOGIN}",
            code=ErrorCode.NOT_FOUND,
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return UsageError(
            f"{hub.repo} has no revision {hub.revision or 'main'}",
            hint=f"give a branch, a tag or a commit, or the default: {HubId(repo=hub.repo).id}",
            code=ErrorCode.NOT_FOUND,
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return UsageError(
            f"cannot {doing} of {hub.id}: the hub does not have it",
            hint=f"give the repository: {HubId(repo=hub.repo, revision=hub.revision).id}",
            code=ErrorCode.NOT_FOUND,
        )
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return CheckpointError(
            f"cannot {doing} of {hub.id}: the hub refuses access (HTTP {status})",
            hint=f"{_LOGIN}; a token in HF_TOKEN goes before it, and may have expired",
            code=ErrorCode.HUB_ACCESS,
        )
    return _fault_error(status, hub, doing)


def _fault_error(status: int, hub: HubId, doing: str) -> CheckpointError:
    if status == _TOO_MANY:
        return HubUnreachableError(
            f"cannot {doing} of {hub.id}: the hub has had too many requests (HTTP {status})",
            hint=f"run again in some minutes; the limit is higher if you {_LOGIN}",
            code=ErrorCode.HUB_UNREACHABLE,
        )
    if status >= _SERVER_FAULT:
        return HubUnreachableError(
            f"cannot {doing} of {hub.id}: the hub is out of order (HTTP {status})",
            hint="run again in some minutes",
            code=ErrorCode.HUB_UNREACHABLE,
        )
    return answer_error(hub, doing, f"HTTP {status}")


def _safe_text(error: Exception) -> str:
    """Return the error's text without addresses and tokens."""
    return f"{type(error).__name__}: {_SECRET.sub('…', first_line(error))}"
