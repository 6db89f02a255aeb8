"""The table of sources: what the adaptive policy chooses from. A source more is a line more."""

from __future__ import annotations

from collections.abc import Callable

from planaria.policy.fewer import Fewer
from planaria.policy.going_back import GoingBack
from planaria.policy.leaner import Leaner
from planaria.policy.leaving_out import LeavingOut
from planaria.policy.rebuilding import Searched, Templates
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.rerouting import Rerouting
from planaria.policy.rings import Rings
from planaria.policy.source import Source

SOURCES: tuple[Callable[[ReroutePolicy], Source], ...] = (
    Rerouting,
    Templates,
    Searched,
    Leaner.of,
    Fewer,
    Rings.of,
    GoingBack,
    LeavingOut.of,
)
"""Made once for a job; of equally good candidates those of the first are preferred."""
