"""Arguments in, pixels out: only here are typer, rich, the environment and exit codes known."""
