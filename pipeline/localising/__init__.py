"""Which layer of an artifact first leaves eager, and why."""
