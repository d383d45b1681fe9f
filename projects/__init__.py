"""`modelc.toml`: many models, their targets and gates, in one declared order."""
