"""The ways of taking a torch module down as a program, shared by the formats."""
