"""Thresholds of decisions: how close is close enough, and how much better is clearly better. One table, named apart."""

from __future__ import annotations

SPLITS_CLOSE, LARGE_SPLITS_CLOSE = 1.003, 1.008
"""Ratio of step time to lower bound at which a search for splits ends: where it is quick to get there, and else."""

DETOUR_GAIN = 0.002
"""A rerouted step that may be shorter by this share is not looked for; nor is one worth more memory."""

SETS_CLOSE = 1.25
"""A set of pipelines whose compute alone takes so much longer than the best step, sums included, is not estimated."""

GRIDS_CLOSE = 1.25
"""Where split backwards fill the bubbles, a step is shorter than its template's time: not by so much."""

OTHER_SET_CLEARLY = 0.95
"""An instantiation that weighs compute alone is left for one that takes so much less, sums of gradients included."""

CROSSING_CLEARLY = 0.97
"""Routes that cross finish a step where its rest takes so much less."""

ANEW_CLEARLY = 0.9
"""A step is begun anew where that takes so much less, by estimate: what is done is done, and estimates may be off."""
