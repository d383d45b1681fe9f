"""A run in a process of its own: whatever ends that process ends one step."""
