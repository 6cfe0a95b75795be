"""Stage: lowering."""
