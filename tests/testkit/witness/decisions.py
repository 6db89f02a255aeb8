"""What the coordinator decided: plans, votes, commits, and who takes part, as of its journal and what it heard."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from tests.testkit.witness.history import Job, Plain
from tests.testkit.witness.journal import LIVE, Known, auditable, layers_held, nodes_holding, record_of, same_commit
from tests.testkit.witness.rules import Find, Rule

FINISH_STEP = "finish step"
"""Purpose of plans for what is left of a step: what is done already has no route."""

PLACING = ("start", "reconfigure", "restore")
"""Purposes of plans that tell how many nodes hold each layer."""


class Decisions:
    """Judges the journal, entry by entry, and the votes behind each commit.

    Attributes:
        known: what the journal says.
        commits: (generation, step) -> commit, of all that ever were in the journal.
        plans: generation -> the plan's entry, likewise.
        votes: (generation, step) -> worker -> vote.
        is_cut: the journal lost its end once, and with it what only workers may know.
    """

    def __init__(self, job: Job, find: Find) -> None:
        self.job = job
        self.known = Known(job)
        self.commits: dict[tuple[int, int], Plain] = {}
        self.plans: dict[int, Plain] = {}
        self.votes: dict[tuple[int, int], dict[int, Plain]] = {}
        self.is_cut = False
        self._find = find
        self._highest = job.done
        self._entries: list[Plain] = []

    @property
    def has_journal(self) -> bool:
        """Whether the history has any entry of a journal."""
        return bool(self._entries)

    def require(self, holds: object, rule: Rule, text: str) -> None:
        if not holds:
            self._find(rule, text)

    # Entries of a history

    def heard(self, worker: int, message: Plain) -> None:
        vote = message if message["type"] == "vote" else message.get("vote")
        if vote is not None:
            self.votes.setdefault((vote["generation"], vote["step"]), {})[worker] = vote

    def cut(self, kept: int) -> None:
        """Forgets the last entries; they may be written again, or what they decided is decided anew."""
        voted = {generation for generation, _ in self.votes}
        for entry in self._entries[kept:]:
            if entry["type"] == "plan" and (generation := entry["message"]["plan"]["generation"]) not in voted:
                self.plans.pop(generation, None)  # it may never have been sent
        del self._entries[kept:]
        self.known = Known(self.job)
        for entry in self._entries:
            self.known.take(entry)
        self.is_cut = True

    def journal(self, entry: Plain) -> None:
        kind = entry["type"]
        self.require(not self.known.is_ended or kind == "restart", Rule.AT_END, f"{kind} after the end")
        match kind:
            case "commit":
                self._committed(entry["commit"])
            case "plan":
                self._planned(entry)
            case "node":
                self._node(entry)
            case "evaluation":
                self._evaluated(entry["evaluated"])
            case "checkpoint":
                step = entry["checkpoint"]["step"]
                self.require(
                    step <= self.known.committed, Rule.SAVED, f"step {step} is saved after step {self.known.committed}"
                )
            case "end":
                (record,) = entry["records"]
                self.require(
                    record["steps"] == self.known.committed,
                    Rule.TOLD_END,
                    f"{record['steps']} steps when {self.known.committed} are committed",
                )
            case "past" if entry["plan"] is not None:
                self.plans[entry["plan"]["message"]["plan"]["generation"]] = entry["plan"]
            case _:
                pass
        self.known.take(entry)
        self._highest = max(self._highest, self.known.committed)
        self._entries.append(entry)
        if self.known.probation and self.job.is_whole and not self.is_cut:
            self._check_probation(entry)

    # Plans

    def _planned(self, entry: Plain) -> None:
        message = entry["message"]
        plan, step, known = message["plan"], message["step"], self.known
        generation = plan["generation"]
        before = self.plans.get(generation)
        has_votes = any(of == generation for of, _ in self.votes)
        is_unknown = generation > known.generation if before is None else not has_votes
        is_again = self.is_cut and (is_unknown or (before is not None and before["message"]["plan"] == plan))
        self.require(
            generation > max(self.plans, default=-1) or is_again,
            Rule.GENERATIONS_RISE,
            f"generation {generation} is planned after {max(self.plans, default=-1)}",
        )
        self._check_step(entry, step)
        self._check_members(plan)
        self._check_epochs(plan)
        taken = record_of(entry, "plan_taken")
        # Of a plan that workers told of, after the journal had lost it, nobody knows what it was taken for.
        is_rest = self.is_cut if taken is None else taken["purpose"] == FINISH_STEP
        _check_routes(plan, self.require, is_rest=is_rest)
        if taken is not None:
            self._check_taken(entry, taken)
        self.plans[generation] = entry
        if message["source"] != LIVE:
            self._highest = max(self._highest, known.committed)

    def _check_step(self, entry: Plain, step: int) -> None:
        known, back, message = self.known, record_of(entry, "restored"), entry["message"]
        if message["source"] == LIVE:
            right = step == known.committed + 1 or (self.is_cut and step <= self._highest + 1)
            self.require(right, Rule.IN_ORDER, f"a plan for step {step} when {known.committed} steps are committed")
            return
        if back is None:
            is_first = known.plan is None or self.is_cut
            self.require(is_first, Rule.GOES_BACK, f"a plan for step {step} loads a state, and does not say why")
            return
        right = back["from_step"] == known.committed or self.is_cut
        self.require(right, Rule.GOES_BACK, f"back from step {back['from_step']}, with {known.committed} committed")
        places = [self.job.done, *known.saved]
        whole = places if known.is_distrusted else places[-1:]
        is_there = step - 1 == back["to_step"] and (back["to_step"] in whole or self.is_cut)
        self.require(is_there, Rule.GOES_BACK, f"back to step {back['to_step']} for step {step}, and whole is {whole}")

    def _check_members(self, plan: Plain) -> None:
        known = self.known
        workers = layers_held(plan)
        nodes = {known.node_of(worker) for worker in workers}
        wrong = nodes - (known.joined - known.gone) | {
            known.node_of(worker) for worker in workers if known.is_gone(worker)
        }
        self.require(
            not wrong or self.is_cut,
            Rule.ROUTED,
            f"plan {plan['generation']} has nodes {sorted(wrong)}, which take no part",
        )

    def _check_epochs(self, plan: Plain) -> None:
        """Checks that no group's sum is taken for one of an older epoch."""
        before = [0] * len(plan["groups"])
        if self.known.plan is not None and not self.is_cut:
            before = self.known.plan["message"]["plan"]["sync_epochs"]
        epochs, generation = plan["sync_epochs"], plan["generation"]
        rise = all(old <= new <= generation for old, new in zip(before, epochs, strict=True))
        self.require(rise, Rule.GENERATIONS_RISE, f"plan {generation} has epochs {epochs} after {before}")

    def _check_taken(self, entry: Plain, taken: Plain) -> None:
        """Checks what is told of a plan: its shape, and how many nodes hold each layer."""
        plan, f = entry["message"]["plan"], self.job.fault_tolerance
        pipelines = [[(s["worker"], s["first_layer"], s["end_layer"]) for s in p["stages"]] for p in plan["pipelines"]]
        told = [[tuple(stage) for stage in pipeline] for pipeline in taken["pipelines"]]
        num_counted = plan["num_microbatches"] - len(plan["dropped"])
        is_it = (
            told == pipelines
            and taken["generation"] == plan["generation"]
            and taken["step"] == entry["message"]["step"]
            and (sum(taken["microbatches"]) == num_counted or taken["purpose"] == FINISH_STEP)
        )
        self.require(is_it, Rule.TOLD_PLANS, f"plan {plan['generation']} is told as {taken}"[:300])
        if taken["purpose"] not in PLACING:
            return
        fewest = min(nodes_holding(plan, self.job.devices_per_node))
        note = next((r["text"] for r in entry["records"] if r.get("subject") == "degraded"), None)
        if note is None:
            self.require(fewest > f, Rule.TOLERANCE, f"plan {plan['generation']}: {fewest} nodes hold a layer, untold")
        else:
            says = f"of {f + 1} replicas some layer has {fewest},"
            self.require(fewest <= f and says in note, Rule.TOLERANCE, f"{fewest} nodes hold a layer, and told: {note}")

    def _check_probation(self, entry: Plain) -> None:
        """Checks that all is audited that nodes on probation compute in a step that begins now."""
        if entry["type"] == "commit" and not entry["commit"]["hold"] and self.known.plan is not None:
            plan, audits = self.known.plan["message"]["plan"], entry["commit"]["audits"]
        elif entry["type"] == "plan" and (taken := record_of(entry, "plan_taken")) is not None:
            plan, audits = entry["message"]["plan"], entry["message"]["audits"]
            if taken["purpose"] == FINISH_STEP or plan.get("evaluation") is not None:
                return
        else:
            return
        audited = {
            (worker, microbatch, layer)
            for microbatch, _, first, end, worker, _ in audits
            for layer in range(first, end)
        }
        wanted = set(auditable(plan, self.known.probation, self.job.devices_per_node))
        self.require(
            wanted <= audited,
            Rule.PROBATION,
            f"plan {plan['generation']}: (worker, microbatch, layer) are not audited: {sorted(wanted - audited)[:9]}",
        )

    # Nodes

    def _node(self, entry: Plain) -> None:
        node, fate, known = entry["node"], entry["fate"], self.known
        if self.is_cut:
            return
        if (device := entry.get("device")) is not None:
            is_gone = known.is_gone(node * self.job.devices_per_node + device)
            is_right = is_gone and node not in known.gone if fate == "joined" else not is_gone
            self.require(is_right, Rule.NODES, f"device {device} of node {node} is {fate}, and was so already")
        elif fate == "joined":
            is_new = node not in known.joined | known.gone
            self.require(is_new, Rule.NODES, f"node {node} joins again")
        else:
            self.require(node not in known.gone, Rule.NODES, f"node {node} is {fate}, and was gone already")

    # Commits

    def _committed(self, commit: Plain) -> None:
        step, generation = commit["step"], commit["generation"]
        known, key = self.known, (commit["generation"], commit["step"])
        before = self.commits.get(key)
        if before is not None:
            is_same = self.is_cut and key not in known.commits and same_commit(before, commit)
            self.require(is_same, Rule.ONE_GENERATION, f"step {step} is committed twice by generation {generation}")
        # With the plan by which the job went back, the journal may have lost that a step was to be trained again.
        is_again = step == known.committed and generation > known.generation
        is_later = known.committed < step <= self._highest + 1
        is_next = step == known.committed + 1 or (self.is_cut and (is_again or is_later))
        is_next |= not self.job.is_whole and step > known.committed
        self.require(is_next, Rule.IN_ORDER, f"step {step} is committed after step {known.committed}")
        is_known = generation == known.generation
        self.require(
            is_known or self.is_cut,
            Rule.ONE_GENERATION,
            f"generation {generation} commits step {step}, and {known.generation} is in force",
        )
        if is_known and before is None and self.job.has_votes:
            assert known.plan is not None
            self._check_votes(commit, known.plan["message"]["plan"])
        self.commits[key] = commit
        self._highest = max(self._highest, step)

    def _check_votes(self, commit: Plain, plan: Plain) -> None:
        step, generation = commit["step"], commit["generation"]
        votes = self.votes.get((generation, step), {})
        workers = layers_held(plan)
        late = [w for w in workers if w not in votes and not self.known.is_gone(w)]
        self.require(not late, Rule.VOTED, f"step {step} is committed without the votes of workers {sorted(late)}")
        is_pass = plan.get("evaluation") is not None
        self.require(not is_pass, Rule.ONE_GENERATION, f"step {step} is committed under a plan that evaluates")
        self._check_ledgers(step, plan, votes, is_whole=len(votes) == len(workers))
        self._check_numbers(commit, plan, votes)
        self._check_digests(step, votes)

    def _check_ledgers(self, step: int, plan: Plain, votes: dict[int, Plain], *, is_whole: bool) -> None:
        union, twice = [0] * plan["num_layers"], 0
        for vote in votes.values():
            for layer, text in enumerate(vote["ledger"]["masks"]):
                mask = int(text, 16)
                twice |= union[layer] & mask
                union[layer] |= mask
        self.require(not twice, Rule.COUNTED, f"step {step}: microbatches {_bits(twice)} are counted twice")
        right = sum(1 << m for m in range(plan["num_microbatches"]) if m not in plan["dropped"])
        for layer, mask in enumerate(union):
            beyond, missing = mask & ~right, right & ~mask
            self.require(
                not beyond and not (missing and is_whole),
                Rule.COUNTED,
                f"step {step}, layer {layer}: microbatches {_bits(missing)} are missing, {_bits(beyond)} too many",
            )

    def _check_numbers(self, commit: Plain, plan: Plain, votes: dict[int, Plain]) -> None:
        step = commit["step"]
        norms: dict[int, float] = {}
        losses: dict[int, float] = {}
        for worker in sorted(votes):
            norms.update({int(group): norm for group, norm in votes[worker]["norms"].items()})
            losses.update({int(m): loss for m, loss in votes[worker]["losses"].items()})
        counted = [m for m in range(plan["num_microbatches"]) if m not in plan["dropped"]]
        is_whole = sorted(losses) == counted and sorted(norms) == list(range(len(plan["groups"])))
        self.require(is_whole, Rule.NUMBERS, f"step {step}: losses of {sorted(losses)}, norms of {sorted(norms)}")
        if not is_whole:
            return
        loss = _added([losses[m] for m in counted]) / len(counted)
        total = _added([norms[group] for group in sorted(norms)])
        norm = (math.sqrt(total) if total >= 0.0 else math.nan) / (len(counted) / plan["num_microbatches"])
        self.require(
            _same(loss, commit["loss"]) and _same(norm, commit["norm"]),
            Rule.NUMBERS,
            f"step {step}: loss {commit['loss']} and norm {commit['norm']}, and votes say {loss} and {norm}",
        )
        is_applied = commit["clip_factor"] != 0.0
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        self.require(is_applied == is_finite, Rule.NUMBERS, f"step {step} is applied: {is_applied}, with loss {loss}")
        left_out = list(commit["dropped"]) == list(plan["dropped"])
        right = self.known.num_dropped + len(commit["dropped"])
        self.require(
            left_out and (commit["num_dropped"] == right or self.is_cut),
            Rule.NUMBERS,
            f"step {step} left out {commit['dropped']}, {commit['num_dropped']} in all, and not {right}",
        )

    def _check_digests(self, step: int, votes: dict[int, Plain]) -> None:
        told: dict[int, set[tuple[int, int]]] = {}
        for vote in votes.values():
            for group, (state, total, _) in vote["digests"].items():
                told.setdefault(int(group), set()).add((state, total))
        for group, digests in told.items():
            self.require(len(digests) == 1, Rule.AGREED, f"step {step}: owners of group {group} hold different bits")

    def _evaluated(self, record: Plain) -> None:
        step, known = record["step"], self.known
        is_last = step == known.committed or self.is_cut
        self.require(is_last, Rule.IN_ORDER, f"step {step} is evaluated after step {known.committed}")
        plan = None if known.plan is None else known.plan["message"]["plan"]
        if plan is None or self.is_cut or not self.job.has_votes:
            return
        is_pass = plan.get("evaluation") is not None and plan["generation"] == record["generation"]
        self.require(is_pass, Rule.ONE_GENERATION, f"step {step} is evaluated by generation {record['generation']}")
        if is_pass:
            votes = self.votes.get((record["generation"], step + 1), {})
            scored = Counter(int(m) for vote in votes.values() for m in vote["scores"])
            right = Counter(range(plan["evaluation"]["num_microbatches"]))
            self.require(scored == right, Rule.COUNTED, f"evaluation of step {step}: microbatches {dict(scored)}")


def _check_routes(plan: Plain, require: Any, *, is_rest: bool) -> None:
    """Checks that each route covers all layers once, and that routes count each microbatch for each layer once; of a
    rest, what is not done yet, so at most once."""
    carried: Counter[tuple[int, int]] = Counter()
    for route in plan["routes"]:
        carried.update((microbatch, layer) for microbatch in route["microbatches"] for layer in route["counted"])
        ends = [0, *(hop["end_layer"] for hop in route["hops"])]
        begins = [*(hop["first_layer"] for hop in route["hops"]), plan["num_layers"]]
        require(ends == begins, Rule.ROUTED, f"plan {plan['generation']}: a route covers layers {begins} to {ends}")
    dropped, layers = set(plan["dropped"]), range(plan["num_layers"])
    right = Counter((m, layer) for m in range(plan["num_microbatches"]) if m not in dropped for layer in layers)
    wrong = sorted({*(carried - right), *(Counter() if is_rest else right - carried)})
    text = f"plan {plan['generation']} counts microbatches and layers twice or never: {wrong[:9]}"
    require(not wrong, Rule.ROUTED, text)


def _added(values: list[float]) -> float:
    """Returns the sum, added one after another; `sum` is more exact than that in newer versions of Python."""
    total = 0.0
    for value in values:
        total += value
    return total


def _same(one: float, other: float | None) -> bool:
    if other is None:
        return not math.isfinite(one)
    return one == other or (math.isnan(one) and math.isnan(other))


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
