"""Stage: runtime."""
