"""The `modelc` command, and `python -m modelc`, which is the same."""

from __future__ import annotations

import os

from .core.pace import unhurried_gc

_INTERRUPTED = 130


def main() -> None:
    """Run the command; a tenth of a run that makes nothing would be collecting garbage."""
    try:
        with unhurried_gc():
            from .cli.app import main as command

            command()
    except KeyboardInterrupt:  # while modules were imported: nothing was begun
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
