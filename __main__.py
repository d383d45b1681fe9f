"""`python -m modelc`: the same as the `modelc` command."""

from __future__ import annotations

from .cli.app import main

if __name__ == "__main__":
    main()
