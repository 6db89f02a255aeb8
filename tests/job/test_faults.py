"""Faults: what `--fail` accepts and refuses."""

from __future__ import annotations

import msgspec
import pytest

from planaria.job.errors import UserError
from planaria.job.faults import (
    COORDINATOR_POINTS,
    CORRUPT_POINTS,
    FAULT_POINTS,
    Fault,
    FaultKind,
    check_faults,
    parse_fault,
)
from planaria.job.parse import parse_job
from planaria.job.sections.train import Numerics

JOB = parse_job(
    "model = {type = 'gpt2'}\ncluster = {nodes = 3}\n"
    "train = {steps = 10, global_batch = 8, microbatch = 2, sequence_length = 16}",
    origin="job.toml",
)


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_every_point_is_read(point: str) -> None:
    assert parse_fault(f"kill:node=2,step=20,at={point}") == Fault(node=2, step=20, at=point)


@pytest.mark.parametrize("kind", [FaultKind.KILL, FaultKind.HANG, FaultKind.FREEZE])
def test_every_kind_is_read(kind: FaultKind) -> None:
    fault = Fault(node=2, step=20, at="sync", kind=kind)
    assert parse_fault(f"{kind.value}:node=2,step=20,at=sync") == parse_fault(str(fault)) == fault


def test_a_notice_has_a_grace_period() -> None:
    fault = Fault(node=2, step=20, at="sync", kind=FaultKind.NOTICE, grace_s=30)
    assert parse_fault("notice:node=2,step=20,at=sync,grace=30") == parse_fault(str(fault)) == fault


def test_a_device_alone_may_be_killed() -> None:
    fault = Fault(node=2, step=3, at="sync", device=0)
    assert parse_fault("kill:node=2,step=3,at=sync,device=0") == parse_fault(str(fault)) == fault
    with pytest.raises(UserError, match=r"device=1: a node has no device 1\. Its devices are numbered 0 to 0"):
        check_faults([Fault(node=2, step=3, at="sync", device=1)], JOB)
    for kind in (FaultKind.HANG, FaultKind.FREEZE):
        assert parse_fault(f"{kind}:node=2,step=3,at=sync,device=0") == msgspec.structs.replace(fault, kind=kind)
    alone = parse_fault("corrupt:node=2,step=3,at=sync,device=0,bits=8")
    assert parse_fault(str(alone)) == alone == msgspec.structs.replace(fault, kind=FaultKind.CORRUPT, bits=8)
    with pytest.raises(UserError, match="'device=0' is not"):
        parse_fault("memory:node=2,step=3,at=sync,device=0")


@pytest.mark.parametrize("point", COORDINATOR_POINTS)
def test_the_coordinator_may_be_killed_at_every_point(point: str) -> None:
    fault = Fault(node=-1, step=20, at=point, kind=FaultKind.COORDINATOR)
    assert parse_fault(f"coordinator:step=20,at={point}") == parse_fault(str(fault)) == fault


def test_a_slow_node_has_a_factor_and_may_have_an_end() -> None:
    fault = Fault(node=2, step=20, at="", kind=FaultKind.SLOW, factor=2.5, until=30)
    assert parse_fault("slow:node=2,step=20,factor=2.5,until=30") == parse_fault(str(fault)) == fault
    assert [step for step in range(18, 33) if fault.slows(step)] == list(range(20, 30))
    for_good = parse_fault("slow:node=2,step=20,factor=2.5")
    assert parse_fault(str(for_good)) == for_good
    assert for_good.slows(1000)


@pytest.mark.parametrize("point", CORRUPT_POINTS)
def test_bits_may_be_flipped_wherever_they_are_held_or_made(point: str) -> None:
    fault = Fault(node=2, step=20, at=point, kind=FaultKind.CORRUPT)
    assert parse_fault(f"corrupt:node=2,step=20,at={point}") == parse_fault(str(fault)) == fault


def test_of_flipped_bits_there_may_be_many_and_from_then_on() -> None:
    fault = Fault(node=2, step=20, at="rest", kind=FaultKind.CORRUPT, bits=8, repeats=True)
    assert parse_fault("corrupt:node=2,step=20,at=rest,bits=8,times=always") == parse_fault(str(fault)) == fault
    assert not parse_fault("corrupt:node=2,step=20,at=rest,times=once").repeats


def test_bits_are_not_flipped_where_nobody_compares_them() -> None:
    (fault,) = [Fault(node=0, step=1, at="rest", kind=FaultKind.CORRUPT)]
    check_faults([fault], JOB)
    replace = msgspec.structs.replace
    fast = replace(JOB, train=replace(JOB.train, numerics=Numerics.FAST))
    off = replace(JOB, resilience=replace(JOB.resilience, compare_replicas=False))
    for job in (fast, off):
        with pytest.raises(UserError, match=r"nobody would find out\. Set train\.numerics"):
            check_faults([fault], job)


def test_order_and_spaces_do_not_matter() -> None:
    assert parse_fault(" kill : at = sync , node = 0 , step = 1 ") == Fault(node=0, step=1, at="sync")


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("", "kinds of fault are kill, hang, freeze, notice, memory, slow"),
        ("burn:node=1,step=1,at=sync", "kinds of fault are"),
        ("notice:node=1,step=1,at=sync", "grace is missing"),
        ("notice:node=1,step=1,at=sync,grace=soon", "grace = 'soon'"),
        ("hang:node=1,step=1,at=sync,grace=3", "'grace=3' is not"),
        ("slow:node=1,step=1", "factor is missing"),
        ("slow:node=1,step=1,factor=0.5", "factor = '0.5' is not a number from 1"),
        ("slow:node=1,step=1,factor=nan", "factor = 'nan' is not a number from 1"),
        ("slow:node=1,step=1,factor=2,at=vote", "'at=vote' is not"),
        ("kill:node=1,step=1,factor=2,at=vote", "'factor=2' is not"),
        ("kill:node=1,step=1,at=rest", "at = 'rest' is no kind of instruction"),
        ("corrupt:node=1,step=1,at=vote", "Use one of rest, apply, sync, forward"),
        ("corrupt:node=1,step=1,at=rest,bits=0", "bits = '0' is not a whole number from 1"),
        ("corrupt:node=1,step=1,at=rest,times=twice", "times = 'twice' is neither once nor always"),
        ("kill:node=1,step=1", "at is missing"),
        ("kill:", "is not node=, step=, at= or device="),
        ("kill:node=1,step=1,at=sync,node=2", "given twice"),
        ("kill:node=1,step=1,when=sync", "is not node="),
        ("kill:node=-1,step=1,at=sync", "node = '-1'"),
        ("kill:node=1,step=0,at=sync", "step = '0'"),
        ("kill:node=x,step=1,at=sync", "node = 'x'"),
        ("kill:node=1,step=1,at=backwards", "Did you mean backward?"),
        ("kill:node=1,step=1,at=zzz", "Use one of load, forward"),
        ("coordinator:node=1,step=1,at=vote", "'node=1' is not step= or at="),
        ("coordinator:step=1", "at is missing"),
        ("coordinator:step=1,at=forward", "nothing that the coordinator does. Use one of join, plan"),
        ("coordinator:step=1,at=votes", "Did you mean vote?"),
    ],
)
def test_what_is_no_fault_is_refused(spec: str, part: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_fault(spec)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_faults_must_be_able_to_strike() -> None:
    check_faults([Fault(node=0, step=1, at="load"), Fault(node=2, step=10, at="vote")], JOB)
    with pytest.raises(UserError, match=r"no node 3.*0 to 2"):
        check_faults([Fault(node=3, step=1, at="load")], JOB)
    with pytest.raises(UserError, match="no step 11"):
        check_faults([Fault(node=0, step=11, at="load")], JOB)
    with pytest.raises(UserError, match="until = 2 is not after step 2"):
        check_faults([Fault(node=0, step=2, at="", kind=FaultKind.SLOW, factor=2, until=2)], JOB)
    with pytest.raises(UserError, match="already"):
        check_faults([Fault(node=0, step=1, at="load"), Fault(node=0, step=2, at="load")], JOB)
    with pytest.raises(UserError, match="no kind of instruction"):
        check_faults([Fault(node=0, step=1, at="lunch")], JOB)
    check_faults([Fault(node=-1, step=3, at="vote", kind=FaultKind.COORDINATOR)] * 2, JOB)
    with pytest.raises(UserError, match="no step 11"):
        check_faults([Fault(node=-1, step=11, at="vote", kind=FaultKind.COORDINATOR)], JOB)
