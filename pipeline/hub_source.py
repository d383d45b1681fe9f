"""Locate the eager side of a request: a hub's id becomes a folder of the hub's cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.checkpoint_files import find_contents
from ..core.errors import Hint, ModelcError, Option
from ..core.hub_ids import HubOrigin, find_hub_id
from .order import Source

if TYPE_CHECKING:
    from ..core.events import Tell
    from ..core.records import Checkpoint


def locate_source(source: Source, tell: Tell) -> Source:
    """Return the source with its checkpoint on this disk; one that is there stays as it is.

    A hub's revision becomes a commit, whose missing files are downloaded. A recorded commit that is
    in the cache needs no network.

    Raises:
        ModelcError: the hub does not have it, does not give it, or cannot be reached.
    """
    text = find_hub_id(source.checkpoint)
    if not text:
        return source
    from ..checkpoints.hub_cache import parse_hub_id
    from ..checkpoints.hub_download import HubFetch

    try:
        hub, takes = parse_hub_id(text), source.allow_pickle or source.trust
        fetch = HubFetch(hub=hub, tell=tell, allow_pickle=takes)
        origin, place = fetch.run(cached_first=bool(source.recorded))
    except ModelcError as error:
        if not source.recorded:
            raise
        hint = Hint(*error.advice.parts, "; or give its location: ", Option("checkpoint", "PATH"))
        raise error.at(error.place, hint=hint) from None
    return replace(source, checkpoint=place, hub=origin)


def locate_path(path: Path, tell: Tell) -> Path:
    """Return a checkpoint's path; that in the hub's cache of a hub's id.

    Raises:
        ModelcError: as `locate_source`.
    """
    return locate_source(Source(checkpoint=path), tell).checkpoint


def locate_weights(path: Path, tell: Tell) -> Path:
    """Return the weights file of a hub's id in the hub's cache; the folder if there are several.

    Raises:
        ModelcError: the hub does not have it or cannot be reached.
    """
    place = locate_path(path, tell)
    if not place.is_dir():
        return place
    files = [file for file in find_contents(place, with_factory=True)[1] if file.suffix != ".json"]
    return files[0] if len(files) == 1 else place


def find_recorded_checkpoint(checkpoint: Checkpoint, folder: Path) -> Path | None:
    """Return where the checkpoint of a manifest in `folder` is; None if it is not on this disk.

    Nothing is downloaded.
    """
    if checkpoint.hub is not None:
        from ..checkpoints.hub_cache import find_recorded_place

        return find_recorded_place(checkpoint.hub)
    path = folder / checkpoint.path
    return path if path.exists() else None


def commit_id(hub: HubOrigin | None) -> str:
    """Return the id of a commit for a manifest; empty for a checkpoint that is not of the hub."""
    return "" if hub is None else hub.id
