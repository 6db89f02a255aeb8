"""Tests. What torch is told here holds for every process of theirs, before any of them imports it."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # several processes share the cores, and threads that wait for others spin
