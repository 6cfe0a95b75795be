"""Stage: tools."""
