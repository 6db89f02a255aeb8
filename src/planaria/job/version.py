"""The version of Planaria, in a module of its own: whoever needs it does not need the public API.

A clone, whatever its tags are, says what is below. A wheel says its tag: hatch_build.py puts it here.
"""

__version__ = "0.1.0"
