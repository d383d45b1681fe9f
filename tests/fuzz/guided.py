"""The same openings under atheris, which looks for inputs that run new lines of modelc.

Atheris is no dependency (it has no wheels for every Python): `pip install atheris`, then
`python tests/fuzz/guided.py OPENING SECONDS`. It ends with an error at the first finding.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    """Look for so many seconds, from the opening's own seeds."""
    name, seconds = sys.argv[1], int(sys.argv[2])
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["modelc"]):
        from modelc.core.errors import ModelcError
        from modelc.tests.fuzz.openings import BY_NAME

        opening = BY_NAME[name]

        with suppress(ModelcError):  # only to have everything imported, and followed
            opening.open(opening.seeds()[0], Path(tempfile.mkdtemp(prefix="guided-")))

    corpus, place = (Path(tempfile.mkdtemp(prefix="guided-")) for _ in range(2))
    for number, seed in enumerate(opening.seeds()):
        (corpus / str(number)).write_bytes(seed)

    def once(data: bytes) -> None:
        try:
            opening.open(data, place)
        except ModelcError:
            pass  # rejected, as it should be
        except Exception as error:
            if type(error).__name__ not in opening.allowed:
                raise

    limits = [f"-max_total_time={seconds}", "-timeout=5", "-rss_limit_mb=4096", "-max_len=65536"]
    atheris.Setup([sys.argv[0], str(corpus), *limits], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
