"""A made-up model on a made-up device, for benchmarks that need a plan and no compute."""

from __future__ import annotations

from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.plan import Group

UNTIED_GPT2 = """
[model]
type = "gpt2"
[model.config]
n_layer = 4
n_embd = 256
n_head = 4
n_positions = 64
attn_pdrop = 0
embd_pdrop = 0
resid_pdrop = 0
tie_word_embeddings = false # torch's pipelining has no tied parameters
"""
"""3.2 million parameters; a job's section."""


def uniform_profile(num_layers: int, layer_s: float, *, parameter_bytes: int, output_bytes: int) -> ModelProfile:
    """Layers that are all alike, each a parameter group.

    Args:
        num_layers: of the model.
        layer_s: of a layer's forward, of its input's gradient, and of its weights'.
        parameter_bytes: of a layer.
        output_bytes: that a layer passes on, for each microbatch.
    """
    layer = LayerCost(
        name="block",
        times=(LayerTimes(forward_s=layer_s, backward_input_s=layer_s, backward_weight_s=layer_s),),
        parameter_bytes=parameter_bytes,
        gradient_bytes=2 * parameter_bytes,
        optimizer_bytes=2 * parameter_bytes,
        activation_bytes=100_000,
        recompute_activation_bytes=10_000,
        output_bytes=output_bytes,
    )
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    return ModelProfile(
        layers=(layer,) * num_layers,
        groups=tuple(Group(layers=(number,), size_bytes=parameter_bytes) for number in range(num_layers)),
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="made up"),
        step=StepCosts(apply_s_per_byte=1e-10, sum_s_per_byte=1e-10),
    )
