"""What every table of the job file is."""

from __future__ import annotations

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the job file. Unknown keys are refused."""
