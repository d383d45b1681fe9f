"""`modelc targets`: every format, ready or not."""

from __future__ import annotations

from . import options as o


def targets(
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """List every format: ready or not, why not, and the line that makes it so."""
    from ..converters.registry import plugin_faults
    from ..pipeline.api import targets as rows_of
    from ..pipeline.manifest_file import encode_json
    from .render import show_targets
    from .render_config import print_warnings
    from .tables import show_json

    rows = rows_of()
    if not quiet:
        print_warnings(plugin_faults())
    if json:
        show_json(encode_json({"targets": {target.NAME: readiness for target, readiness in rows}}))
        return
    show_targets(rows)
