"""Stage: scheduling."""
