"""A run in a child process: whatever ends that process ends one step."""
