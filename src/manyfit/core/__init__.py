"""Errors, small types and lazy imports. Nothing here imports a third-party package."""
