"""Which workers live but do nothing: judged from heartbeats, by comparing progress with the estimate.

A process that is gone is learnt from its socket, at once. This is for the others: stopped processes, hosts that went
without a closing packet, main threads that hang while their process still answers. Pure: time comes as an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import BEAT_S, Activity, Pulse, beat_every_s
from planaria.protocol.messages.user import WorkerWord
from planaria.protocol.thresholds import MISSED_BEATS, OVERDUE_S, WORKED_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds after which a worker counts as hung.

    Attributes:
        silence_s: without any message from a process that is stopped or on another host; of thousands, who beat less
            often, at least `MISSED_BEATS` heartbeats.
        oversubscribed_silence_s: without any message from a process that is known to be there and runnable.
        least_s: in one instruction, however short it is.
        factor: how many times its expected duration an instruction may take.
        working_factor: this factor for a worker whose heartbeats tell that it works: a node of a fifth of the speed
            is slow, and does not hang.
        busy_s: in work that no estimate is made of.
        join_s: between its start and its first message.
    """

    silence_s: float = 1.0
    oversubscribed_silence_s: float = 10.0
    least_s: float = 1.0
    factor: float = 3.0
    working_factor: float = 10.0
    busy_s: float = 120.0
    join_s: float = 120.0


@dataclass(slots=True)
class _Seen:
    heard: float
    pulse: Pulse
    since: float
    """Monotonic seconds when the pulse last changed."""
    worked_s: float = 0.0
    worked_at: float = float("-inf")
    """Monotonic seconds when a heartbeat last told of more work."""
    doing: str = ""
    held_bytes: int = 0


class Liveness:
    """What is known of every connected worker, as of its last message."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seen: dict[WorkerId, _Seen] = {}
        self._awaited: dict[WorkerId, float] = {}

    def started(self, worker: WorkerId, now: float) -> None:
        """Records that the worker's process was started, and should join soon."""
        self._awaited[worker] = now

    def late(self, now: float) -> Iterator[tuple[WorkerId, float]]:
        """Yields workers that were started more than `join_s` ago and have not joined, and how long ago."""
        for worker, since in sorted(self._awaited.items()):
            if now - since > self._limits.join_s:
                yield worker, now - since

    def knows(self, worker: WorkerId) -> bool:
        """Returns whether the worker has joined and is not forgotten."""
        return worker in self._seen

    def answers(self, worker: WorkerId, now: float) -> bool:
        """Returns whether the worker is there and its last heartbeat is not overdue."""
        seen = self._seen.get(worker)
        return seen is not None and now - seen.heard <= min(self._overdue_s, self._silence_s / 2)

    def joined(self, worker: WorkerId, now: float) -> None:
        self._awaited.pop(worker, None)
        self._seen[worker] = _Seen(now, Pulse(activity=Activity.BUSY, progress=0), now)

    def forget(self, worker: WorkerId, now: float) -> None:
        """Forgets a lost worker. Workers that waited for it are not to blame: their time begins anew."""
        self._seen.pop(worker, None)
        self._awaited.pop(worker, None)
        for seen in self._seen.values():
            seen.since = now

    def felt(
        self,
        worker: WorkerId,
        pulse: Pulse,
        now: float,
        worked_s: float = 0.0,
        doing: str = "",
        held_bytes: int = 0,
    ) -> None:
        """Records a heartbeat, see `Alive`; `worked_s` is for how long the worker has worked in all."""
        seen = self._seen.get(worker)
        if seen is None:
            return
        seen.heard = now
        seen.doing = doing
        seen.held_bytes = held_bytes or seen.held_bytes
        if worked_s >= seen.worked_s + WORKED_S:
            seen.worked_s, seen.worked_at = worked_s, now
        if seen.pulse != pulse:
            seen.pulse, seen.since = pulse, now

    def words(self, now: float) -> dict[int, WorkerWord]:
        """Returns each connected worker's last word."""
        return {
            int(worker): WorkerWord(
                activity=seen.pulse.activity,
                doing=seen.doing,
                waits_for=seen.pulse.waits_for,
                held_bytes=seen.held_bytes,
                silent_s=max(0.0, now - seen.heard),
            )
            for worker, seen in sorted(self._seen.items())
        }

    @property
    def awaited(self) -> tuple[int, ...]:
        """Workers that were started and have not joined."""
        return tuple(sorted(map(int, self._awaited)))

    def excuse(self, now: float, lost_s: float) -> None:
        """Excuses all workers after the failure detector heard nobody for so long.

        Their silence counts from now on. What they did, and whether they joined, was not seen for `lost_s`, which does
        not count: all of their time would be too much, as whoever hangs would never be found by a detector that is
        away again and again.
        """
        for seen in self._seen.values():
            seen.heard, seen.since = now, min(now, seen.since + lost_s)
        self._awaited = {worker: min(now, since + lost_s) for worker, since in self._awaited.items()}

    def quiet_s(self, now: float) -> float:
        """Returns seconds since the last sign of any worker; 0 where there is none."""
        return now - max([seen.heard for seen in self._seen.values()], default=now)

    def silent(self, now: float) -> Iterator[tuple[WorkerId, float]]:
        """Yields workers that sent nothing for longer than `silence_s`, and for how long."""
        limit_s = self._silence_s
        yield from sorted([(w, now - seen.heard) for w, seen in self._seen.items() if now - seen.heard > limit_s])

    def is_gone(self, silence_s: float, *, runnable: bool) -> bool:
        """Returns whether a silence means that the worker is gone; `runnable`: its process is known to be there."""
        borne_s = self._limits.oversubscribed_silence_s if runnable else 0.0
        return silence_s > max(borne_s, self._silence_s)

    @property
    def _overdue_s(self) -> float:
        return OVERDUE_S * beat_every_s(len(self._seen)) / BEAT_S

    @property
    def _silence_s(self) -> float:
        return max(self._limits.silence_s, MISSED_BEATS * beat_every_s(len(self._seen)))

    def hung(self, now: float, instruction_s: float) -> Iterator[tuple[WorkerId, str]]:
        """Yields workers that answer but make no progress in what they do, each with the cause.

        Args:
            now: monotonic seconds.
            instruction_s: how long the longest instruction of the plan is expected to take.
        """
        limits = self._limits
        shortest_s = min(limits.least_s, limits.busy_s)  # hardly anybody is without progress for as long
        idle = [worker for worker, seen in self._seen.items() if now - seen.since > shortest_s]
        if not idle:
            return
        quiet = self._quiet()
        for worker in sorted(worker for worker in idle if worker not in quiet):
            seen = self._seen[worker]
            stuck_s = now - seen.since
            works = now - seen.worked_at <= self._silence_s
            computing_s = max(limits.least_s, (limits.working_factor if works else limits.factor) * instruction_s)
            if seen.pulse.activity is Activity.COMPUTING and stuck_s > computing_s:
                yield worker, f"hung: one instruction for {stuck_s:.1f} s, where {instruction_s:.3f} s is expected"
            elif seen.pulse.activity is Activity.BUSY and stuck_s > self._limits.busy_s:
                yield worker, f"hung: no progress for {stuck_s:.0f} s"

    def _quiet(self) -> set[WorkerId]:
        """Returns workers whose heartbeats are overdue while others' arrive; only their silence is judged."""
        newest = max((seen.heard for seen in self._seen.values()), default=0.0)
        overdue_s = self._overdue_s
        return {worker for worker, seen in self._seen.items() if newest - seen.heard > overdue_s}

    def blocked(self, now: float, step_s: float) -> tuple[WorkerId, str] | None:
        """Finds the worker that is cut off where all wait and none works, so that a message must be stuck.

        From waiter to waiter, the way ends with one whose peer waits for nothing: that peer has sent.

        Args:
            now: monotonic seconds.
            step_s: how long a step is expected to take.
        """
        limit_s = max(self._limits.least_s, self._limits.factor * step_s)
        for seen in self._seen.values():
            if now - seen.since <= limit_s or seen.pulse.activity in (Activity.COMPUTING, Activity.BUSY):
                return None
        if self._quiet():
            return None
        waiting = {w: seen for w, seen in sorted(self._seen.items()) if seen.pulse.activity is Activity.WAITING}
        if not waiting:
            return None
        worker = next((w for w, seen in waiting.items() if seen.pulse.waits_for >= 0), None)
        passed: set[WorkerId] = set()
        while worker is not None and worker not in passed:
            passed.add(worker)
            peer = WorkerId(waiting[worker].pulse.waits_for)
            if peer not in waiting:
                return worker, f"hung: what worker {peer} sent to worker {worker} has not arrived"
            worker = peer
        if worker is None:
            return None
        return min(passed), "hung: it waits for workers that wait for it"
