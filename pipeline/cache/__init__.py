"""Cache keys of steps, and the store of results under these keys."""
