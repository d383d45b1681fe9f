"""The nouns and the contracts. Standard library only."""
