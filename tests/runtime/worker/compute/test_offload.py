"""What a forward keeps can be elsewhere until its backward: the same bits, and parameters stay."""

from __future__ import annotations

import torch
from torch import nn

from planaria.runtime.worker.compute.device.device import HostDevice, kept_on_host


def layer() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 8))


def gradients(module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(output.square().sum(), [given, *module.parameters()])


def test_offloading_changes_no_bit() -> None:
    module, given = layer(), torch.randn(4, 8, requires_grad=True)
    torch.manual_seed(2)
    right = gradients(module, given, module(given))
    torch.manual_seed(2)
    with kept_on_host(module.parameters(), HostDevice()):
        output = module(given)
    for found, expected in zip(gradients(module, given, output), right, strict=True):
        assert torch.equal(found, expected)


def test_what_is_kept_is_a_copy_and_parameters_are_not() -> None:
    """Changes in place show which is which: autograd does not notice those behind a copy."""
    linear, given = nn.Linear(2, 2, bias=False), torch.ones(1, 2, requires_grad=True)
    scaled = given * 1.0
    with kept_on_host(linear.parameters(), HostDevice()):
        output = linear(scaled)
    with torch.no_grad():
        scaled.fill_(7.0)
        linear.weight.fill_(3.0)
    of_given, of_weight = torch.autograd.grad(output.sum(), [given, linear.weight])
    assert of_weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert of_given.tolist() == [[6.0, 6.0]]
