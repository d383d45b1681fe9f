"""Which layer of an artifact first differs from eager, and why."""
