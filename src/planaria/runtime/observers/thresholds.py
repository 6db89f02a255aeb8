"""Limits of what shows a run elsewhere, and of who is told: how long they may take, and how much waits for them.

Each line says what it decides, and what it was measured on, as in `planaria.runtime.thresholds`.
"""

from __future__ import annotations

# Views of a run elsewhere

VIEW_QUEUE = 10_000
"""Records that may wait for a view (TensorBoard, a webhook) before it misses some: a few MB. Not measured."""

VIEW_BATCH = 100
"""Records that a view gets at a time, at most: with ten figures each, as many as MLflow takes at once. Not measured."""

VIEW_PAUSE_S = 0.5
"""Seconds for which records are gathered for a view, so that steps of milliseconds wake it twice a second. Not
measured."""

VIEW_END_S = 30.0
"""Seconds that views may take to show what is left when the run is over. Not measured."""

VIEW_LOOK_S = 0.1
"""Seconds between two looks at whether views are still to be waited for. Not measured."""

PAGE_END_S = 3.0
"""Seconds that the page of [observe] dashboard_port may take to show the run's end: it looks each 0.5 s. Not
measured."""

TRACKER_STARTS_S = 60.0
"""Seconds that Weights & Biases may take to begin a run. Not measured."""

TRACKER_ENDS_S = 25.0
"""Seconds that Weights & Biases may take to upload what is left: below those of all views. Not measured."""

RECOVERIES_TAGGED = 200
"""Most recoveries that MLflow gets as tags of a run. Not measured."""

# Alerts

ALERT_EVERY_S = 60.0
"""Seconds between two messages of one kind; those between are counted in the next. Not measured."""

ALERT_TRIES_S = (0.0, 1.0, 4.0)
"""Seconds of rest before each attempt to deliver a message. Not measured."""

ALERT_WITHIN_S = 5.0
"""Seconds that a webhook may be silent. Not measured."""
