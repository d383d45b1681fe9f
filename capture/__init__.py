"""Capture: turns a torch module into a graph; rewrites what an exporter rejects."""
