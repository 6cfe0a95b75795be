"""Stage: backends."""
