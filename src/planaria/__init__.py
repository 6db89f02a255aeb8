"""Planaria: train large models on machines that fail."""

__version__ = "0.1.0"
