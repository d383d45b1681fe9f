"""`modelc.toml`: a project of many models with their targets and gates."""
