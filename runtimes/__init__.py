"""Runtimes outside this process that artifacts are judged in."""
