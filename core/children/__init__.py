"""Child processes: the only package that starts a process.

`child_call` calls a Python function in a child, `processes` runs any program. Both end all that
they started.
"""
