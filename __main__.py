"""The `modelc` command, and `python -m modelc`, which is the same."""

from __future__ import annotations

from .core.pace import unhurried_gc


def main() -> None:
    """Run the command; a tenth of a run that makes nothing would be collecting garbage."""
    with unhurried_gc():
        from .cli.app import main as command

        command()


if __name__ == "__main__":
    main()
