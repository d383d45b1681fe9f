"""Provenance of artifacts: embedded metadata, seals, signatures, and their verification."""
