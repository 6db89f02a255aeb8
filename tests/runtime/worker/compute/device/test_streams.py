"""A device that does things later: what comes to it and from it is right, and who does not wait is found out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from planaria.runtime.worker.compute.device.device import Device, HostDevice, here, kept_on_host
from planaria.runtime.worker.compute.device.hazards import Hazard
from planaria.runtime.worker.compute.device.queues import Stream
from planaria.runtime.worker.compute.device.stand_in import StandInQueues
from planaria.runtime.worker.compute.device.streams import StreamDevice

VALUES = torch.arange(6.0)


@pytest.fixture
def device() -> Iterator[StreamDevice]:
    made = StreamDevice(torch.device("cpu"), StandInQueues())
    with made.in_use():
        yield made


def doubled(device: Device) -> torch.Tensor:
    (given,) = device.copied_in((VALUES,))
    return given * 2.0


def test_values_go_to_the_device_and_come_back(device: StreamDevice) -> None:
    (back,) = here(device.copied_out((doubled(device),)))
    assert torch.equal(back, VALUES * 2.0)
    assert float(device.number(doubled(device).sum())) == 30.0


def test_on_the_host_nothing_is_copied() -> None:
    device = HostDevice()
    assert device.copied_in((VALUES,))[0] is VALUES
    assert device.copied_out((VALUES,)) == (VALUES,)
    assert device.number(VALUES.sum()) == 15.0


def test_a_copy_has_not_come_before_somebody_waits_for_it(device: StreamDevice) -> None:
    late = device.copied_out((doubled(device),))
    assert not late.are_here
    assert not torch.equal(torch.from_numpy(late.pinned[0].numpy().copy()), VALUES * 2.0)
    assert torch.equal(late.tensors()[0], VALUES * 2.0)
    assert late.are_here


def test_the_host_may_not_look_before_it_has_waited(device: StreamDevice) -> None:
    late = device.copied_out((doubled(device),))
    with pytest.raises(Hazard, match="the host reads"):
        float(late.pinned[0][0])


def test_sums_go_on_beside_computation_and_their_end_is_waited_for(device: StreamDevice) -> None:
    total = doubled(device)
    with device.on_sums():
        summed = total + 1.0
    with pytest.raises(Hazard, match=r"Stream.COMPUTE"):
        summed.mul(2.0)
    device.after(Stream.SUMS)
    assert float(device.number(summed.mul(2.0)[5])) == 22.0


def test_shadows_go_on_beside_computation_and_their_end_is_waited_for(device: StreamDevice) -> None:
    given = doubled(device)
    with device.on_shadows((given,)):
        made = given + 1.0
    with pytest.raises(Hazard, match=r"Stream.COMPUTE"):
        given.zero_()
    with pytest.raises(Hazard, match=r"Stream.COMPUTE"):
        made.mul(2.0)
    device.after(Stream.SHADOWS)
    assert float(device.number(made.mul(2.0)[5])) == 22.0
    given.zero_()


def test_what_shadows_were_given_may_be_dropped_while_they_use_it(device: StreamDevice) -> None:
    given = doubled(device)
    with device.on_shadows((given,)):
        made = given + 1.0
    del given
    doubled(device)  # whose memory is not that
    device.after(Stream.SHADOWS)
    assert float(device.number(made[5])) == 11.0


def test_what_a_shadow_keeps_goes_to_the_host_beside_computation(device: StreamDevice) -> None:
    weight, given = doubled(device).requires_grad_(), doubled(device).requires_grad_()
    with device.on_shadows((given,)), kept_on_host([weight], device):
        output = (torch.tanh(given) * weight).sum()
    right = torch.autograd.grad((torch.tanh(given) * weight).sum(), [given, weight])
    with device.on_shadows(()):
        found = torch.autograd.grad(output, [given, weight])
    device.after(Stream.SHADOWS)
    for pair in zip(found, right, strict=True):
        assert torch.equal(*here(device.copied_out(pair)))


def test_sums_that_go_on_while_a_shadow_waits_leave_it_on_its_stream(device: StreamDevice) -> None:
    with device.on_shadows(()):
        with device.on_sums():
            pass
        (given,) = device.copied_in((VALUES,))
        made = given + 1.0
    device.after(Stream.SHADOWS)
    assert torch.equal(here(device.copied_out((made,)))[0], VALUES + 1.0)


def test_values_that_fill_a_tensor_beside_computation(device: StreamDevice) -> None:
    total = doubled(device)
    with device.on_sums():
        device.fill(total, VALUES)
        norm = device.number(torch.dot(total, total))
    with pytest.raises(Hazard):
        total.sum()
    assert float(norm) == 55.0
    total.sum()  # what the host has waited for is done


def test_what_is_copied_out_is_as_it_was_when_it_was_asked_for(device: StreamDevice) -> None:
    """Who changes it later waits until it has been copied."""
    total = doubled(device)
    late = device.copied_out((total,))
    with pytest.raises(Hazard):
        total.zero_()
    device.after(Stream.COPIES_OUT)
    total.zero_()
    assert torch.equal(late.tensors()[0], VALUES * 2.0)


def test_a_copy_that_makes_the_host_wait_is_refused(device: StreamDevice) -> None:
    with pytest.raises(Hazard, match="copied_in or copied_out"):
        device.queues.pinned(VALUES.size(), VALUES.dtype).copy_(doubled(device))


def test_what_the_host_must_know_it_waits_for(device: StreamDevice) -> None:
    """As on a GPU, where torch waits by itself for a number that Python asks for."""
    total = doubled(device)
    assert float(total.sum()) == 30.0
    with device.queues.on(Stream.SUMS):
        total.add(1.0)


def test_a_stream_is_timed_by_its_events() -> None:
    queues, ticks = StandInQueues(), itertools.count()
    queues.clock_s = lambda: float(next(ticks))  # type: ignore[method-assign]
    device = StreamDevice(torch.device("cpu"), queues)
    with device.in_use():
        first = device.mark()
        doubled(device)
        last = device.mark()
        with pytest.raises(Hazard, match="timed"):
            queues.seconds_between(first, last)
        assert device.seconds_between(first, last) >= 1.0


def test_what_autograd_keeps_is_kept_aside_and_brought_back(device: StreamDevice) -> None:
    weight = doubled(device).requires_grad_()
    given = doubled(device).requires_grad_()
    with kept_on_host([weight], device):
        output = (torch.tanh(given) * weight).sum()
    right = torch.autograd.grad((torch.tanh(given) * weight).sum(), [given, weight])
    for found, expected in zip(torch.autograd.grad(output, [given, weight]), right, strict=True):
        pair = here(device.copied_out((found, expected)))
        assert torch.equal(*pair)
