"""The command line: bench, explain, doctor and the rest."""
