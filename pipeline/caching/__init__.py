"""What a step depends on, as one key, and results kept under such keys for later runs."""
