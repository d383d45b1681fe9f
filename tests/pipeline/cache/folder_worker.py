"""Brings one stored folder to an output folder again and again, until standard input is closed."""

from __future__ import annotations

import select
import sys
from pathlib import Path

import msgspec

from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.cache.remote_files import open_remote_files
from modelc.pipeline.cache.stored_folder import StoredFolder, replace_results


def main(stored: Path, url: str, out: Path) -> None:
    """Bring it; another process that is in the folder is waited for."""
    folder = msgspec.json.decode(stored.read_bytes(), type=StoredFolder)
    files = open_remote_files(url)
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        try:
            replace_results(folder, files, out)
        except UsageError as error:
            if error.code is not ErrorCode.FOLDER_BUSY:
                raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
