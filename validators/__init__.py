"""Judge arrays: this package depends on neither formats nor frameworks."""
