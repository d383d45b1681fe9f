"""The `modelc` command, and `python -m modelc`, which is the same."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; a tenth of a run that makes nothing would be collecting garbage.

    Until the command handles signals itself, an interrupt ends the process as the system does:
    raised within an import it may come out as another error, with a traceback.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .core.process import relax_gc

    with relax_gc():
        from .cli.app import main as command

        command()


def _leave_current_folder() -> None:
    """Take off what `python -m` puts first on the import path: the current folder.

    An `onnx.py` of the user's would stand in for the library there. Where modelc itself lies in
    that folder, it goes last. Factories find the user's modules all the same
    (checkpoints/user_code).
    """
    if sys.flags.safe_path or not sys.path:
        return
    from pathlib import Path

    first = sys.path.pop(0)
    if Path(first).absolute() == Path(__file__).absolute().parents[1]:
        sys.path.append(first)


if __name__ == "__main__":
    _leave_current_folder()
    main()
