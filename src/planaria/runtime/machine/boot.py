"""Which boot of which host this is."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """Returns what names this boot of this host, within which monotonic seconds count the same; "" if nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
