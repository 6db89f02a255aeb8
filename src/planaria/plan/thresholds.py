"""Thresholds of decisions: how close is close enough, and how much better is clearly better. One table, named apart."""

from __future__ import annotations

SPLITS_CLOSE, LARGE_SPLITS_CLOSE = 1.003, 1.008
"""Ratio of step time to lower bound at which a search for splits ends: for small and for large searches."""

DETOUR_GAIN = 0.002
"""Share of a rerouted step's time below which a gain is worth neither a search nor more memory."""

SETS_CLOSE = 1.25
"""Ratio of compute alone to the best step, sums included, above which a set of pipelines is not estimated."""

GRIDS_CLOSE = 1.25
"""Most by which split backwards make a step shorter than its template's time."""

OTHER_SET_CLEARLY = 0.95
"""Ratio by which a step, sums included, must be shorter to replace the instantiation that weighs compute alone."""

CROSSING_CLEARLY = 0.97
"""Ratio by which crossing routes must shorten the rest of a step to be chosen."""

ANEW_CLEARLY = 0.9
"""Ratio by which beginning a step anew must be shorter, by estimate, to be chosen over finishing it."""
