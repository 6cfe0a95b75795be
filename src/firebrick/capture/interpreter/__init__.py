"""The symbolic interpreter and what it asks for."""
