"""A GPU's streams are torch's, and nothing else: each call is one that torch defines so. It has not run on a GPU."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, create_autospec

import pytest
import torch

from planaria.runtime.worker.compute.device.cuda_queues import CudaQueues
from planaria.runtime.worker.compute.device.queues import Stream

PLACE = torch.device("cuda", 1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Torch's names, with its signatures and no device behind them."""
    named = {}
    for name in ("Stream", "Event"):
        torchs = getattr(torch.cuda, name)
        kind = create_autospec(torchs)
        kind.side_effect = lambda torchs=torchs, **given: create_autospec(torchs, instance=True)
        named[name] = kind
    for name in ("default_stream", "stream", "device"):
        named[name] = create_autospec(getattr(torch.cuda, name))
    named["stream"].return_value = named["device"].return_value = MagicMock()
    for name, made in named.items():
        monkeypatch.setattr(torch.cuda, name, made)
    return named


def test_computation_is_on_torchs_own_stream_and_the_others_on_one_each(cuda: dict[str, Any]) -> None:
    queues = CudaQueues(PLACE)
    cuda["default_stream"].assert_called_once_with(PLACE)
    assert cuda["Stream"].call_count == len(Stream) - 1
    given = []
    for stream in Stream:
        queues.on(stream)
        given.append(cuda["stream"].call_args.args[0])
    assert len({id(one) for one in given}) == len(Stream)
    queues.in_use()
    cuda["device"].assert_called_once_with(PLACE)


def test_events_are_recorded_waited_for_and_timed(cuda: dict[str, Any]) -> None:
    queues = CudaQueues(PLACE)
    first, last = queues.record(Stream.COMPUTE), queues.record(Stream.SUMS)
    cuda["Event"].assert_called_with(enable_timing=True)
    queues.on(Stream.SUMS)
    sums = cuda["stream"].call_args.args[0]
    last.record.assert_called_once_with(sums)
    queues.wait(Stream.SUMS, first)
    sums.wait_event.assert_called_once_with(first)
    queues.synchronize(last)
    last.synchronize.assert_called_once_with()
    first.elapsed_time.return_value = 250.0
    assert queues.seconds_between(first, last) == 0.25
    last.query.return_value = True
    assert queues.is_over(last)


def test_copies_do_not_wait_and_are_on_their_stream(cuda: dict[str, Any]) -> None:
    queues = CudaQueues(PLACE)
    target, source = create_autospec(torch.Tensor, instance=True), torch.zeros(1)
    queues.copy(target, source, Stream.COPIES_IN)
    target.copy_.assert_called_once_with(source, non_blocking=True)
    stream = cuda["stream"].call_args.args[0]
    queues.uses(target, Stream.COPIES_IN)
    target.record_stream.assert_called_once_with(stream)
