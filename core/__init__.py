"""Records and contracts. The standard library, and msgspec and psutil for child processes."""
