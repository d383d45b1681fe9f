"""A checkpoint on disk in, an eager module and its runner out."""
