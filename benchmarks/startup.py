"""How long `modelc --help` takes beside a minimal Typer program: python benchmarks/startup.py.

Both are whole processes of this interpreter, run in turn; exits 1 beyond --limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from modelc.benchmarks.process_cost import costs_in_turn

MINIMAL = '''
import typer

app = typer.Typer()


@app.command()
def greet(name: str) -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


@app.command()
def leave(name: str) -> None:
    """Say goodbye."""
    typer.echo(f"goodbye {name}")


app()
'''
"""The least that a two-command Typer program can be."""


def main() -> int:
    """Read the options, time both, print, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="turns of each")
    parser.add_argument("--limit", type=float, default=2.0, help="largest ratio that passes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "minimal.py")
        script.write_text(MINIMAL, encoding="utf-8")
        argvs = {
            "minimal": [sys.executable, str(script), "--help"],
            "modelc": [sys.executable, "-m", "modelc", "--help"],
        }
        costs = costs_in_turn(argvs, args.runs)
    seconds = {name: median(cost.wall for cost in runs) for name, runs in costs.items()}
    ratio = seconds["modelc"] / seconds["minimal"]
    print(f"{seconds['modelc']:.3f} s, ratio {ratio:.2f}, limit {args.limit:.2f}")
    return int(ratio > args.limit)


if __name__ == "__main__":
    sys.exit(main())
