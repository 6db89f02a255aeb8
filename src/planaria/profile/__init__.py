"""Measured profiles. `ERROR_SUFFIX`: what a measuring process appends to its output's name to report a mistake."""

ERROR_SUFFIX = ".error"
