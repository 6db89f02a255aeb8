"""Pipeline rounds: the clocks of a pipeline's stages, as numbers in arrays, in a compiled and a plain form.

In a round every stage runs the forward that is due, from the first stage to the last, then one backward, from the last
stage to the first: whatever is waited for was sent before, so nothing is looked at twice. What a stage does for nobody
else (weights' gradients where they are apart, forwards of what it shadows) comes in between. Both forms do the same
operations on the same numbers in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from planaria.plan.compiled import Kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


MOST_AT_FRONT = 1 << 12
"""Rounds times stages of which a front tells: some hundred bytes each, in over a hundred fronts at once."""


@dataclass(slots=True)
class Front:
    """The rounds of steps whose microbatches all count the same, as far as it does not matter how many they are.

    Attributes:
        after: of each round, the stages' clocks at its end, when their last messages to the stage before came, and what
            they have computed.
        arrived: at each stage, when the messages of these rounds came; at last, at what follows the last stage.
    """

    after: list[tuple[list[float], list[float], list[float]]] = field(default_factory=list)
    arrived: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What the stages do, first to last, for travellers in the order in which they set out.

    Attributes:
        stages_s: four rows of a column a stage: its forward, a message to the next stage, one to the stage before, and
            when it begins.
        ahead: of each stage, the forwards before its first backward may follow the next forward; never more than those
            of the stage before, or than there are travellers.
        kinds: of each traveller.
        backwards_s: of each kind one row, its backward at each stage.
        lows: of each kind, the lowest stage that runs a backward; that sends no gradient.
        cuts: of each backward that is cut into layers its stage, its traveller, its first piece and the end of its
            pieces; by stage, then traveller.
        pieces_s: seconds of each layer of these, from the top layer down.
        pieces: the layer, where it counts, or -1.
        num_layers: of the model.
        behind: of each stage, the backwards of later travellers before a traveller's weights' gradients; -1: these are
            part of its backward. Where they are apart, travellers are of one kind.
        weights_s: of each stage, a traveller's weights' gradients. Those that come after the last backward are cut.
        tails: of each stage the first of the pieces of these and their end.
        tails_s: seconds of each piece: of each layer, from the top down; each is run for all travellers that are left.
        tail_layers: the layer of each.
        shadows_s: of each stage, a forward of what it shadows.
        shadows: of each stage, how many of these are done before anything else, before each traveller's backward, and
            at last; no rows: nobody shadows.
        front: of steps that begin as this one does; the plain form goes on from there, and leaves its own rounds. None:
            nothing is known of them. Only where weights' gradients are not apart and nobody shadows.
    """

    stages_s: list[list[float]]
    ahead: list[int]
    kinds: list[int]
    backwards_s: list[list[float]]
    lows: list[int]
    cuts: list[tuple[int, int, int, int]]
    pieces_s: list[float]
    pieces: list[int]
    num_layers: int
    behind: list[int]
    weights_s: list[float]
    tails: list[tuple[int, int]]
    tails_s: list[float]
    tail_layers: list[int]
    shadows_s: list[float]
    shadows: list[list[int]]
    front: Front | None = None

    def run(
        self, *, overlap: bool, compiled: bool | None = None
    ) -> tuple[list[float], list[float], list[float], list[float]]:
        """Of each stage, in seconds: the end of its last compute (or message, where its sends block); what it computes,
        added in the order in which it does; and its longest forward, backward or layer of one that is cut. And of each
        layer when its last piece that counts ends, or -1.

        Args:
            overlap: whether messages travel beside the sender's compute.
            compiled: use numba's form, which is loaded, or not; None: where it is.
        """
        if not (KERNEL.is_loaded if compiled is None else compiled):
            return _plain(self, overlap=overlap)
        stages, layers = KERNEL.form(compiled=True)(
            np.array(self.stages_s, dtype=np.float64),
            np.array(self.ahead, dtype=np.int64),
            np.array(self.kinds, dtype=np.int64),
            np.array(self.backwards_s, dtype=np.float64),
            np.array(self.lows, dtype=np.int64),
            np.array(self.cuts, dtype=np.int64).reshape(-1, 4),
            np.array(self.pieces_s, dtype=np.float64),
            np.array(self.pieces, dtype=np.int64),
            self.num_layers,
            np.array(self.behind, dtype=np.int64),
            np.array([self.weights_s, self.shadows_s], dtype=np.float64),
            np.array(self.tails, dtype=np.int64).reshape(-1, 2),
            np.array(self.tails_s, dtype=np.float64),
            np.array(self.tail_layers, dtype=np.int64),
            np.array(self.shadows, dtype=np.int64).reshape(-1, len(self.kinds) + 2),
            overlap,
        )
        ends_s, totals_s, longest_s = stages.tolist()
        return ends_s, totals_s, longest_s, layers.tolist()


def load() -> None:
    """Use the compiled form from now on, if numba is there: half a second from a cache, some seconds without."""
    KERNEL.load()
    if KERNEL.is_loaded:
        tiny = Rounds(
            stages_s=[[1.0], [0.0], [0.0], [0.0]],
            ahead=[0],
            kinds=[0],
            backwards_s=[[1.0]],
            lows=[0],
            cuts=[],
            pieces_s=[],
            pieces=[],
            num_layers=1,
            behind=[-1],
            weights_s=[0.0],
            tails=[(0, 0)],
            tails_s=[],
            tail_layers=[],
            shadows_s=[0.0],
            shadows=[],
        )
        tiny.run(overlap=True)


def _loops(
    stages_s: Floats,
    ahead: Ints,
    kinds: Ints,
    backwards_s: Floats,
    lows: Ints,
    cuts: Ints,
    pieces_s: Floats,
    pieces: Ints,
    num_layers: int,
    behind: Ints,
    apart_s: Floats,
    tails: Ints,
    tails_s: Floats,
    tail_layers: Ints,
    shadows: Ints,
    overlap: bool,
) -> tuple[Floats, Floats]:
    """Numba's form. Of `apart_s`, the first row is the weights', the second the shadows'."""
    num_stages, num = stages_s.shape[1], kinds.shape[0]
    has_shadows = shadows.shape[0] > 0
    due = np.full(num_layers, -1.0)
    out = np.zeros((3, num_stages))
    clock, total, longest = out[0], out[1], out[2]
    clock[:] = stages_s[3]
    arrived = np.zeros((num_stages + 1, num))
    down = np.zeros(num_stages)
    up = np.zeros(num_stages)
    next_cut = np.zeros(num_stages, dtype=np.int64)
    for at in range(cuts.shape[0] - 1, -1, -1):
        next_cut[cuts[at, 0]] = at
    ran = np.zeros(num_stages, dtype=np.int64)
    if has_shadows:
        for s in range(num_stages):
            while ran[s] < shadows[s, 0]:
                ran[s] += 1
                clock[s] += apart_s[1, s]
                total[s] += apart_s[1, s]
                if apart_s[1, s] > longest[s]:
                    longest[s] = apart_s[1, s]
    most_ahead = ahead[0]
    for t in range(-most_ahead, num):
        for s in range(num_stages):
            # Before the first round, a stage is as far as it may be ahead.
            i = t + (most_ahead if t < 0 else ahead[s])
            if i >= num or (t < 0 and i >= ahead[s]):
                continue
            now = clock[s]
            if s > 0 and arrived[s, i] > now:
                now = arrived[s, i]
            now += stages_s[0, s]
            total[s] += stages_s[0, s]
            if stages_s[0, s] > longest[s]:
                longest[s] = stages_s[0, s]
            if s + 1 < num_stages:
                sent = (now if now > down[s] else down[s]) + stages_s[1, s]
                arrived[s + 1, i] = down[s] = sent
                if not overlap:
                    now = sent
            clock[s] = now
        if t < 0:
            continue
        kind = kinds[t]
        come = 0.0
        for s in range(num_stages - 1, lows[kind] - 1, -1):
            now = clock[s]
            if has_shadows:
                while ran[s] < shadows[s, t + 1]:
                    ran[s] += 1
                    now += apart_s[1, s]
                    total[s] += apart_s[1, s]
                    if apart_s[1, s] > longest[s]:
                        longest[s] = apart_s[1, s]
            if s + 1 < num_stages and come > now:
                now = come
            at = next_cut[s]
            if at < cuts.shape[0] and cuts[at, 0] == s and cuts[at, 1] == t:
                next_cut[s] = at + 1
                for piece in range(cuts[at, 2], cuts[at, 3]):
                    now += pieces_s[piece]
                    total[s] += pieces_s[piece]
                    if pieces_s[piece] > longest[s]:
                        longest[s] = pieces_s[piece]
                    if pieces[piece] >= 0:
                        due[pieces[piece]] = now
            else:
                now += backwards_s[kind, s]
                total[s] += backwards_s[kind, s]
                if backwards_s[kind, s] > longest[s]:
                    longest[s] = backwards_s[kind, s]
            if s > lows[kind]:
                come = (now if now > up[s] else up[s]) + stages_s[2, s]
                up[s] = come
                if not overlap:
                    now = come
            if behind[s] >= 0 and t >= behind[s] and t < num - 1:
                now += apart_s[0, s]
                total[s] += apart_s[0, s]
                if apart_s[0, s] > longest[s]:
                    longest[s] = apart_s[0, s]
            clock[s] = now
    for s in range(num_stages):
        now = clock[s]
        for piece in range(tails[s, 0], tails[s, 1]):
            for _ in range(min(num, behind[s] + 1)):
                now += tails_s[piece]
                total[s] += tails_s[piece]
            if tails_s[piece] > longest[s]:
                longest[s] = tails_s[piece]
            due[tail_layers[piece]] = now
        if has_shadows:
            while ran[s] < shadows[s, num + 1]:
                ran[s] += 1
                now += apart_s[1, s]
                total[s] += apart_s[1, s]
                if apart_s[1, s] > longest[s]:
                    longest[s] = apart_s[1, s]
        clock[s] = now
    return out, due


def _plain(rounds: Rounds, *, overlap: bool) -> tuple[list[float], list[float], list[float], list[float]]:
    """Without numba."""
    forward_s, down_s, up_s, begins_s = rounds.stages_s
    num_stages, num = len(forward_s), len(rounds.kinds)
    clock, total = list(begins_s), [0.0] * num_stages
    down, up = [0.0] * num_stages, [0.0] * num_stages
    longest = list(forward_s) if num else [0.0] * num_stages
    is_usual = not rounds.shadows and all(behind < 0 for behind in rounds.behind)
    due = [-1.0] * rounds.num_layers
    # The first stage waits for nobody, the last one's message goes nowhere and takes no time.
    wires = [*down_s[:-1], 0.0]
    arrived: list[list[float]] = [[begins_s[0]] * num, *([] for _ in range(num_stages))]
    shadows, shadows_s, ran = rounds.shadows, rounds.shadows_s, [0] * num_stages
    front = rounds.front or Front()
    shared = _num_shared(rounds)
    begun = min(shared, len(front.after))

    def shadow(s: int, until: int) -> None:
        for _ in range(ran[s], until):
            clock[s] += shadows_s[s]
            total[s] += shadows_s[s]
        if ran[s] < until:
            ran[s] = until
            longest[s] = max(longest[s], shadows_s[s])

    if begun:
        clock, up, total = map(list, front.after[begun - 1])
        arrived[1:] = [came[: begun + lead] for came, lead in zip(front.arrived, rounds.ahead, strict=True)]
        down = [came[-1] for came in arrived[1:]]
    for s, forward in enumerate(() if begun else forward_s):
        if shadows:
            shadow(s, shadows[s][0])
        now, sent, added, wire, sends = clock[s], 0.0, total[s], wires[s], arrived[s + 1].append
        for come in arrived[s][: rounds.ahead[s]]:
            now = (come if come > now else now) + forward
            added += forward
            sent = (now if now > sent else sent) + wire
            sends(sent)
            if not overlap:
                now = sent
        clock[s], down[s], total[s] = now, sent, added
    below = [
        (s, forward, wires[s], rounds.ahead[s], arrived[s], arrived[s + 1].append)
        for s, forward in enumerate(forward_s)
    ]
    # Of weights' gradients that are not apart, none come after any backward.
    lags = [behind if behind >= 0 else num for behind in rounds.behind]
    above = [
        [(s, row[s], up_s[s] if s > low else 0.0, lags[s]) for s in range(num_stages - 1, low - 1, -1)]
        for row, low in zip(rounds.backwards_s, rounds.lows, strict=True)
    ]
    cuts = {(s, t): slice(first, end) for s, t, first, end in rounds.cuts}
    cut = {t for _, t, _, _ in rounds.cuts}
    whole = {rounds.kinds[0]} if begun else set[int]()
    for t, kind in enumerate(rounds.kinds[begun:], begun):
        for s, forward, wire, lead, arrivals, sends in below:
            if t + lead < num:
                come, now, sent = arrivals[t + lead], clock[s], down[s]
                now = (come if come > now else now) + forward
                total[s] += forward
                down[s] = sent = (now if now > sent else sent) + wire
                sends(sent)
                clock[s] = now if overlap else sent
        come = 0.0
        if is_usual and t not in cut:
            whole.add(kind)
            for s, backward, wire, _ in above[kind]:
                now, sent = clock[s], up[s]
                now = (come if come > now else now) + backward
                total[s] += backward
                up[s] = come = (now if now > sent else sent) + wire
                clock[s] = now if overlap else come
            if t < shared:
                front.after.append((clock[:], up[:], total[:]))
            continue
        for s, backward, wire, lag in above[kind]:
            if shadows:
                shadow(s, shadows[s][t + 1])
            now, sent = clock[s], up[s]
            now = come if come > now else now
            if t in cut and (s, t) in cuts:
                for seconds, layer in zip(rounds.pieces_s[cuts[s, t]], rounds.pieces[cuts[s, t]], strict=True):
                    now += seconds
                    total[s] += seconds
                    longest[s] = max(longest[s], seconds)
                    if layer >= 0:
                        due[layer] = now
            else:
                now += backward
                total[s] += backward
                if backward > longest[s]:
                    longest[s] = backward
            up[s] = come = (now if now > sent else sent) + wire
            clock[s] = now if overlap else come
            if lag <= t < num - 1:
                weight = rounds.weights_s[s]
                clock[s] += weight
                total[s] += weight
                if weight > longest[s]:
                    longest[s] = weight
    for kind in whole:
        longest = list(map(max, longest, rounds.backwards_s[kind]))
    if begun < shared:
        front.arrived = [came[: shared + lead] for came, lead in zip(arrived[1:], rounds.ahead, strict=True)]
    for s, (first, end) in enumerate(rounds.tails):
        for piece in range(first, end):
            seconds = rounds.tails_s[piece]
            for _ in range(min(num, rounds.behind[s] + 1)):
                clock[s] += seconds
                total[s] += seconds
            longest[s] = max(longest[s], seconds)
            due[rounds.tail_layers[piece]] = clock[s]
        if shadows:
            shadow(s, shadows[s][num + 1])
    return clock, total, longest, due


def _num_shared(rounds: Rounds) -> int:
    """Rounds at the beginning that are those of the front: of whole backwards of the first kind, while every stage has
    another forward to run."""
    if rounds.front is None:
        return 0
    first = rounds.kinds[0]
    alike = next((t for t, kind in enumerate(rounds.kinds) if kind != first), len(rounds.kinds))
    most = MOST_AT_FRONT // len(rounds.ahead)
    return max(0, min(alike, len(rounds.kinds) - rounds.ahead[0], most, *(t for _, t, _, _ in rounds.cuts)))


KERNEL = Kernel(_loops)
