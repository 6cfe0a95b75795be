"""Backends: what turns a captured graph into something that can be called."""

from firebrick.backends.backend_registry import FIREBRICK, call_backend, find_backend, list_backends, register_backend

__all__ = ["FIREBRICK", "call_backend", "find_backend", "list_backends", "register_backend"]
