"""Cache keys of steps, and the results that are stored under these keys for later runs."""
