"""Records and contracts. Standard library only."""
