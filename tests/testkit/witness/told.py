"""What users were told: steps, nodes, recoveries, plans and the end, against what the journal has."""

from __future__ import annotations

from typing import Any

from tests.testkit.witness.decisions import Decisions
from tests.testkit.witness.history import Job, Plain
from tests.testkit.witness.rules import Find, Rule

OF_A_STEP = ("loss", "learning_rate", "clip_factor", "scale", "dropped", "num_dropped", "generation")
"""Fields of a told step that the commit has as well."""


class Told:
    """Judges the records of a run, in the order in which users got them.

    Attributes:
        step: the last one told, as the job stands.
        recoveries: all that were told.
        skipped: steps told as not applied.
        redone: steps that were told, and are trained again.
    """

    def __init__(self, job: Job, decisions: Decisions, find: Find) -> None:
        self.step = job.done
        self.recoveries: list[Plain] = []
        self.skipped: set[int] = set()
        self.redone = 0
        self._job = job
        self._decisions = decisions
        self._find = find
        self._dropped: dict[int, int] = {}
        self._ended: Plain | None = None
        self._begin_part()

    def _begin_part(self) -> None:
        """Begins a run, or the part of one that goes on from a checkpoint: with nodes of its own."""
        self._generation = -1
        self._live: set[int] = set()
        self._gone: set[int] = set()
        self._lost: dict[int | str, tuple[int, Plain]] = {}  # by node, or "NODE:DEVICE", in order
        self._untold: list[tuple[int | str, int, Plain]] = []  # losses of which no recovery is told
        self._without: dict[int, set[int]] = {}
        self._leaving: set[int] = set()
        self._recovered: set[int | str] = set()
        self._passes = 0
        self._number = 0
        self._at: dict[int | str, int] = {}  # of losses, which record they were
        self._back: list[tuple[int, int]] = []
        self._ended = None

    def _require(self, holds: object, rule: Rule, text: str) -> None:
        if not holds:
            self._find(rule, text)

    def told(self, record: Plain) -> None:
        event = record["event"]
        is_new_part = event == "node_joined" and record["live_nodes"] == 1 and self._generation >= 0
        if self._job.may_resume and (is_new_part or (self._ended is not None and event != "note")):
            self._begin_part()
        self._require(self._ended is None or event == "note", Rule.TOLD_END, f"{event} is told after the end")
        self._number += 1
        take = getattr(self, f"_take_{event}", None)
        if take is not None:
            take(record)

    def ended(self) -> None:
        """Judges what only the end of a history shows."""
        decisions = self._decisions
        at_once = self._ended is None or self._ended["status"] == "interrupted"
        if at_once or self._job.may_resume or decisions.is_cut or not decisions.has_journal:
            return
        assert self._ended is not None
        lost = decisions.known.lost
        told = {node for node in self._lost if isinstance(node, int)}
        self._require(told == lost, Rule.TOLD_NODES, f"lost {sorted(lost)}, and told {sorted(told)}")
        went_on = {node for node, (passes, _) in self._lost.items() if passes < self._passes}
        struck = went_on.intersection(decisions.known.struck) - self._recovered
        is_over = self._ended["status"] != "completed"
        self._require(
            is_over or not struck, Rule.TOLD_RECOVERY, f"the recovery from the loss of {sorted(struck)} is not told"
        )

    @property
    def num_dropped(self) -> int:
        """Microbatches that were left out of the steps told."""
        return sum(self._dropped.values())

    # Nodes

    def _check_live(self, record: Plain) -> None:
        if not self._live | self._gone or self._decisions.is_cut:
            return  # one process that trains alone; or who joined is known no more
        told, right = record["live_nodes"], len(self._live)
        self._require(told == right, Rule.TOLD_NODES, f"{told} nodes live, and {right} do: {record}"[:300])

    def _take_node_joined(self, record: Plain) -> None:
        node = record["node"]
        is_new = node not in self._live | self._gone
        self._require(is_new or self._decisions.is_cut, Rule.TOLD_NODES, f"node {node} is told to join again")
        self._live.add(node)
        self._check_live(record)

    def _take_node_lost(self, record: Plain) -> None:
        node = record["node"]
        self._require(
            node not in self._gone or self._decisions.is_cut, Rule.TOLD_NODES, f"the loss of node {node} is told again"
        )
        if self._decisions.plans and not self._decisions.is_cut and not self._job.may_resume:
            is_lost = node in self._decisions.known.lost
            self._require(is_lost, Rule.TOLD_NODES, f"the loss of node {node} is told, and the journal has none")
        self._live.discard(node)
        self._gone.add(node)
        self._lost[node] = self._passes, record
        self._untold.append((node, self._passes, record))
        self._at[node] = self._number
        self._check_live(record)

    def _take_device_lost(self, record: Plain) -> None:
        node, device = record["node"], record["device"]
        without = self._without.setdefault(node, set())
        is_here = node in self._live and device not in without
        self._require(
            is_here, Rule.TOLD_NODES, f"the loss of device {device} of node {node} is told, which is not here"
        )
        without.add(device)
        self._lost[f"{node}:{device}"] = self._passes, record
        self._untold.append((f"{node}:{device}", self._passes, record))
        self._at[f"{node}:{device}"] = self._number
        self._recovered.discard(f"{node}:{device}")
        self._check_devices(record)

    def _take_device_joined(self, record: Plain) -> None:
        node, device = record["node"], record["device"]
        without = self._without.setdefault(node, set())
        is_back = node in self._live and device in without
        self._require(
            is_back, Rule.TOLD_NODES, f"device {device} of node {node} is told to come back, and was not lost"
        )
        without.discard(device)
        self._check_devices(record)

    def _check_devices(self, record: Plain) -> None:
        told, right = record["live_devices"], self._job.devices_per_node - len(self._without[record["node"]])
        self._require(told == right, Rule.TOLD_NODES, f"{told} devices live, and {right} do: {record}"[:300])

    def _take_node_leaving(self, record: Plain) -> None:
        node = record["node"]
        # It may give notice to a new coordinator before it is back there, or after a journal lost that it was let go.
        is_to_come = node not in self._gone or self._decisions.is_cut
        self._require(is_to_come, Rule.TOLD_NODES, f"node {node} leaves, which is gone")
        self._leaving.add(node)

    def _take_node_released(self, record: Plain) -> None:
        node = record["node"]
        is_here = node in self._live & self._leaving
        is_again = self._decisions.is_cut and node in self._live | self._gone
        self._require(
            is_here or is_again, Rule.TOLD_NODES, f"node {node} is let go, which did not leave or is not here"
        )
        self._live.discard(node)
        self._gone.add(node)
        self._check_live(record)

    def _take_waiting(self, record: Plain) -> None:
        self._check_live(record)

    # Steps

    def _take_step_committed(self, record: Plain) -> None:
        self._take_step(record)
        self.skipped.discard(record["step"])

    def _take_step_skipped(self, record: Plain) -> None:
        self._take_step(record)
        self.skipped.add(record["step"])

    def _take_step(self, record: Plain) -> None:
        step, generation = record["step"], record["generation"]
        is_next = step == self.step + 1 or (self._decisions.is_cut and step > self.step)
        self._require(is_next, Rule.TOLD_STEPS, f"step {step} is told after step {self.step}")
        self._require(
            generation >= self._generation or self._decisions.is_cut,
            Rule.GENERATIONS_RISE,
            f"generation {generation} is told after {self._generation}",
        )
        self._generation = generation
        self.step = step
        self._dropped[step] = len(record["dropped"])
        self._passes += 1
        self._check_live(record)
        told, right = (
            record["tokens_per_s"] * record["duration_s"],
            self._job.tokens * (self._job.microbatches - len(record["dropped"])),
        )
        self._require(
            abs(told - right) <= 1e-6 * right,
            Rule.TOLD_STEPS,
            f"step {step} is told to train {told} tokens, not {right}",
        )
        if self._decisions.plans:
            self._check_commit(record)

    def _check_commit(self, record: Plain) -> None:
        step = record["step"]
        commit = self._decisions.commits.get((record["generation"], step))
        if commit is None:
            is_thinned = not self._job.is_whole or self._job.may_resume
            self._require(is_thinned, Rule.TOLD_STEPS, f"step {step} is told, and the journal has it not")
            return
        pairs = [(record[name], commit[name]) for name in OF_A_STEP if name in record and name in commit]
        pairs.append((record["grad_norm"], commit["norm"]))
        is_applied = commit["clip_factor"] != 0.0
        is_it = is_applied == (record["event"] == "step_committed")
        is_right = all(_same(told, right) for told, right in pairs)
        self._require(is_it and is_right, Rule.TOLD_STEPS, f"{record} is told of {commit}"[:500])

    def _take_evaluated(self, record: Plain) -> None:
        self._require(
            record["step"] == self.step or self._decisions.is_cut,
            Rule.TOLD_STEPS,
            f"step {record['step']} is told as evaluated after step {self.step}",
        )
        self._passes += 1

    def _take_restored(self, record: Plain) -> None:
        begin, end = record["from_step"], record["to_step"]
        is_right = begin >= self.step and end <= begin
        self._require(is_right or self._decisions.is_cut, Rule.GOES_BACK, f"{record} after step {self.step}")
        self._back.append((self._number, begin - end))
        self._undo(end)

    def _undo(self, step: int) -> None:
        self.redone += sum(done > step for done in self._dropped)
        self.step = step
        self._dropped = {done: n for done, n in self._dropped.items() if done <= step}
        self.skipped = {done for done in self.skipped if done <= step}

    def _take_checkpoint_saved(self, record: Plain) -> None:
        step = record["step"]
        self._require(
            step <= self.step or self._decisions.is_cut, Rule.SAVED, f"step {step} is told as saved at {self.step}"
        )

    # Plans and recoveries

    def _take_plan_taken(self, record: Plain) -> None:
        generation, cut = record["generation"], self._decisions.is_cut
        self._require(
            generation > self._generation or cut,
            Rule.GENERATIONS_RISE,
            f"plan {generation} is told after {self._generation}",
        )
        self._generation = max(generation, self._generation)
        nodes = {stage[0] // self._job.devices_per_node for pipeline in record["pipelines"] for stage in pipeline}
        here = nodes <= self._live
        self._require(here or cut, Rule.TOLD_PLANS, f"plan {generation} has nodes {sorted(nodes - self._live)}")
        if record["purpose"] == "start":
            self._undo(record["step"] - 1)
        self._require(
            record["step"] == self.step + 1 or cut,
            Rule.TOLD_PLANS,
            f"plan {generation} is told for step {record['step']} after {self.step}",
        )
        entry = self._decisions.plans.get(generation)
        if entry is not None:
            is_it = record["plan_hash"] in {told.get("plan_hash") for told in entry.get("records", ())}
            self._require(is_it, Rule.TOLD_PLANS, f"plan {generation} is told otherwise than the journal has it")
        elif self._decisions.plans and self._job.is_whole and not self._job.may_resume:
            self._find(Rule.TOLD_PLANS, f"plan {generation} is told, and the journal has it not")

    def _take_recovered(self, record: Plain) -> None:
        recovery, cut = record["recovery"], self._decisions.is_cut
        nodes: list[int | str] = [*recovery["lost_nodes"], *recovery.get("lost_devices", ())]
        self.recoveries.append(recovery)
        if not cut:
            untold = [node for node in nodes if node not in self._lost or node in self._recovered]
            self._require(nodes and not untold, Rule.TOLD_RECOVERY, f"a recovery from the loss of {nodes}: {untold}")
            losses = [loss for loss in self._untold if loss[0] in nodes]
            self._untold = [loss for loss in self._untold if loss[0] not in nodes]
            first = min((passes for _, passes, _ in losses), default=self._passes)
            self._check_causes(recovery, [record for _, _, record in losses])
            self._require(
                self._passes > first, Rule.TOLD_RECOVERY, f"a recovery of {nodes}, and no step was committed since"
            )
            since = min((self._at[node] for node in nodes if node in self._at), default=self._number)
            redone = sum(steps for number, steps in self._back if number > since)
            self._require(
                recovery["steps_redone"] == redone,
                Rule.TOLD_RECOVERY,
                f"{recovery['steps_redone']} steps are redone after the loss of {nodes}, and {redone} were undone",
            )
        rerun, most = recovery["microbatches_rerun"], recovery["microbatches_per_step"]
        is_right = rerun <= most == self._job.microbatches
        self._require(is_right, Rule.TOLD_RECOVERY, f"{rerun} of {most} microbatches were run again")
        self._recovered.update(nodes)

    def _check_causes(self, recovery: Plain, losses: list[Plain]) -> None:
        """Checks that a recovery's causes and its time of detection are those of its losses."""
        causes = ", ".join(dict.fromkeys(record["cause"] for record in losses))
        times = [record["detect_ms"] for record in losses if record["detect_ms"] is not None]
        right = causes, max(times, default=None)
        told = recovery["cause"], recovery["detect_ms"]
        self._require(told == right, Rule.TOLD_RECOVERY, f"a recovery from {told}, and told were {right}")

    # The end

    def _take_run_ended(self, record: Plain) -> None:
        steps, decisions = record["steps"], self._decisions
        # What a journal lost to a power cut is gone for good where those who knew of it are gone too.
        is_right = steps == self.step or (decisions.is_cut and steps == decisions.known.committed)
        self._require(is_right, Rule.TOLD_END, f"{steps} steps at the end, and {self.step} are told")
        twice = record["skipped_microbatches"], record["duplicated_microbatches"]
        self._require(twice == (0, 0), Rule.TOLD_END, f"{twice} microbatches are told as missing or counted twice")
        if not self._job.may_resume and not decisions.is_cut:
            told = record["skipped_steps"], record["dropped_microbatches"]
            right = len(self.skipped), self._job.dropped + self.num_dropped
            self._require(told == right, Rule.TOLD_END, f"{told} steps skipped and microbatches dropped, not {right}")
        is_whole = self.step == self._job.steps or "eval.stop_at" in record["message"]
        is_completed = record["status"] == "completed" and not self._job.may_resume  # then it may have had fewer
        self._require(
            is_whole or not is_completed, Rule.TOLD_END, f"completed after {self.step} of {self._job.steps} steps"
        )
        self._ended = record


def _same(told: Any, right: Any) -> bool:
    if isinstance(right, float) and not isinstance(told, list):
        return told is None or told == right or (told != told and right != right)
    return bool(told == right)
