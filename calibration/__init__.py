"""A directory of samples in, checked feeds of named arrays out. Never knows a backend."""
