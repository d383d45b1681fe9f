"""Models small enough to read, with their signatures and checkpoints: for the demo, tests, docs."""
