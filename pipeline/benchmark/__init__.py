"""Benchmarks: every model of an output folder beside eager, measured in turns."""
