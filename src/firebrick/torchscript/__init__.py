"""Stage: torchscript."""
