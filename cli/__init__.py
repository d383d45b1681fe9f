"""The command line: the only package that uses typer, rich, the environment and exit codes."""
