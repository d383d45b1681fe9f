"""Write the checkpoints that are not shipped: python -m sample_models.make NAME... -o DIR.

NAME is one of the models in FACTORIES (none: all of them); each becomes DIR/NAME.safetensors.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from .encoder import bert
from .gate import gate
from .lstm import tagger
from .nested import detector
from .resnet import resnet50

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

FACTORIES: dict[str, Callable[[], nn.Module]] = {
    "encoder": bert,
    "gate": gate,
    "lstm": tagger,
    "nested": detector,
    "resnet": resnet50,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, write what it names, print each path."""
    parser = argparse.ArgumentParser(prog="python -m sample_models.make", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FACTORIES))
    parser.add_argument("-o", "--out", type=Path, default=Path(), help="folder to write to")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(FACTORIES)):
        parser.error(f"no model named {', '.join(unknown)}: choose from {', '.join(FACTORIES)}")
    for name in args.names or FACTORIES:
        print(write_checkpoint(name, args.out))


def write_checkpoint(name: str, folder: Path) -> Path:
    """Build the named model, save its state dict as folder/NAME.safetensors, return that path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.safetensors"
    save_file(FACTORIES[name]().state_dict(), path)
    return path


if __name__ == "__main__":
    main()
