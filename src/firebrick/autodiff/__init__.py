"""Stage: autodiff."""
