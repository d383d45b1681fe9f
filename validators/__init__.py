"""Arrays in, verdicts out: knows numbers, never formats or frameworks."""
