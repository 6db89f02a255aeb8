"""AdamW: decoupled weight decay (Loshchilov and Hutter, 2019), by torch's fused kernel."""

from __future__ import annotations

from planaria.model.training.adam import Adam

OPTIMIZER = Adam(fields={"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}, kernel="_fused_adamw_")
"""Weight decay shrinks the parameters, apart from the gradient."""
