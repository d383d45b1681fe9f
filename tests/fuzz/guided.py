"""The same openings under atheris, which looks for inputs that reach new lines of modelc.

Atheris is no dependency (it has no wheels for every Python): `pip install atheris`, then
`python tests/fuzz/guided.py OPENING SECONDS`. It ends with an error at the first finding.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from importlib import import_module, util
from pathlib import Path
from typing import Any


def main() -> None:
    """Look for so many seconds, from the opening's own seeds."""
    name, seconds = sys.argv[1], int(sys.argv[2])
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["modelc"]):
        spec = util.spec_from_file_location("openings", Path(__file__).with_name("openings.py"))
        if spec is None or spec.loader is None:
            raise FileNotFoundError("openings.py")
        openings: Any = util.module_from_spec(spec)
        sys.modules[spec.name] = openings
        spec.loader.exec_module(openings)
        opening = openings.BY_NAME[name]
        from modelc.core.errors import ModelcError

        with suppress(ModelcError):  # only to have everything imported, and followed
            opening.open(opening.seeds()[0], Path(tempfile.mkdtemp(prefix="guided-")))

    corpus, place = (Path(tempfile.mkdtemp(prefix="guided-")) for _ in range(2))
    for number, seed in enumerate(opening.seeds()):
        (corpus / str(number)).write_bytes(seed)

    def once(data: bytes) -> None:
        try:
            opening.open(data, place)
        except ModelcError:
            pass  # refused, as it should be
        except Exception as error:
            if type(error).__name__ not in opening.allowed:
                raise

    limits = [f"-max_total_time={seconds}", "-timeout=5", "-rss_limit_mb=4096", "-max_len=65536"]
    atheris.Setup([sys.argv[0], str(corpus), *limits], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
