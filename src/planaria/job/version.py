"""The version of Planaria, in a module of its own: whoever needs it does not need the public API."""

__version__ = "0.1.0"
