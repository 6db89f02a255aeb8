"""Figures of Oobleck (Jang et al., SOSP 2023), as its paper prints them."""

from __future__ import annotations

from typing import Final

FREQUENCIES_S: Final = {"6h": 6 * 3600.0, "1h": 3600.0, "10m": 600.0}
"""One failure after each of these (section 7.2)."""

NUM_NODES: Final = 30
"""A40 GPUs, one a node (section 7.1)."""
FEWEST_NODES: Final = 15
"""Nodes are lost "until less than half of the nodes (15 nodes) remain"."""
MEMORY_BYTES: Final = 40 * 10**9
NETWORK_GBIT_S: Final = 200.0

MODELS: Final = {
    "BERT-Large": "bert-large",
    "GPT-2": "gpt2-345m",
    "GPT-3 Medium": "gpt3-medium",
    "GPT-3 2.7b": "gpt3-2.7b",
    "GPT-3 6.7b": "gpt3-6.7b",
}
"""The paper's name, and that of our preset (Table 1)."""

GLOBAL_BATCH: Final = {
    "BERT-Large": 8192,
    "GPT-2": 8192,
    "GPT-3 Medium": 8192,
    "GPT-3 2.7b": 1024,
    "GPT-3 6.7b": 1024,
}
MICROBATCH: Final = {"BERT-Large": 32, "GPT-2": 32, "GPT-3 Medium": 16, "GPT-3 2.7b": 2, "GPT-3 6.7b": 2}
"""Varuna's and Oobleck's (Table 1)."""

TABLE_2: Final = {
    "Bamboo": {"BERT-Large": (77.04, 75.60, 69.84), "GPT-2": (17.47, 17.13, 16.01)},
    "Varuna": {
        "BERT-Large": (259.57, 245.39, 168.15),
        "GPT-2": (86.42, 83.94, 69.67),
        "GPT-3 Medium": (29.52, 27.61, 20.71),
        "GPT-3 2.7b": (7.27, 6.41, 0.36),
        "GPT-3 6.7b": (4.02, 2.91, 0.12),
    },
    "Oobleck": {
        "BERT-Large": (287.10, 286.28, 282.11),
        "GPT-2": (85.59, 85.42, 84.80),
        "GPT-3 Medium": (29.30, 29.21, 28.70),
        "GPT-3 2.7b": (7.29, 7.23, 6.89),
        "GPT-3 6.7b": (4.33, 4.22, 3.55),
    },
}
"""Samples a second at one failure in 6 h, 1 h, 10 min."""

CHECKPOINT_STEPS: Final = 10
"""Varuna's, in this paper (section 7.1): synchronous."""
CHECKPOINT_STEPS_FREE: Final = 2
"""Of "Varuna (no ckpt)" (section 7.4.3)."""

TABLE_3_LAYERS: Final = (24, 32, 64, 96)
TABLE_3_S: Final = {
    (8, 1): (0.28, 0.71, 9.65, 68.50),
    (8, 4): (0.41, 1.15, 11.58, 74.56),
    (8, 8): (0.54, 1.50, 20.98, 109.76),
    (16, 1): (3.37, 7.45, 66.35, 540.36),
    (16, 4): (4.56, 10.41, 108.10, 649.67),
    (16, 8): (4.90, 11.78, 176.04, 1213.63),
    (24, 1): (11.35, 30.11, 262.47, 1477.54),
    (24, 4): (14.78, 45.80, 472.53, 2153.84),
    (24, 8): (15.59, 49.25, 520.08, 3297.92),
}
"""Seconds of planning one template, by nodes and GPUs a node."""

TABLE_4_FREE: Final = {"BERT-Large": (275.27, 270.81, 245.78), "GPT-3 6.7b": (4.57, 4.00, 0.36)}
"""Varuna without the cost of checkpoints, samples a second."""

TRACE_INTERVALS_S: Final = {"EC2 P3": 7.7 * 60, "GCP A100": 10.3 * 60}
"""Mean time between preemptions in the 12 hours of Figure 10 (section 7.3)."""
TRACE_HOURS: Final = 12.0
