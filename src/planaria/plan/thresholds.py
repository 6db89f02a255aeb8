"""Thresholds of how plans are found and weighed: tolerances, budgets of searches, and what is clearly better.

One table for the plan, planner, estimate, policies and simulation. Each line says what it decides, and what it was
measured on. Not here: units, formats, and the sizes of caches, which change no result.
"""

from __future__ import annotations

# Equal, close and clearly better

ROUNDING = 1e-9
"""Bound of the relative rounding errors of sums: times closer than this are the same. Measured: by analysis alone."""

STEPS_EQUAL = 0.002
"""Share of a step's time within which two are taken for equal: a gain is worth neither a search nor more memory, and no
profile is that precise. Not measured."""

SPLITS_CLOSE = 1.003
"""Ratio of step time to lower bound at which a small search for splits ends. Not measured."""

LARGE_SPLITS_CLOSE = 1.008
"""As `SPLITS_CLOSE`, for a large search. Not measured."""

SETS_CLOSE = 1.25
"""Ratio of compute alone to the best step, sums included, above which a set of pipelines is not estimated. Not
measured."""

GRIDS_CLOSE = 1.25
"""Most by which split backwards make a step shorter than its template's time. Not measured."""

OTHER_SET_CLEARLY = 0.95
"""Ratio by which a step, sums included, must be shorter to replace the instantiation that weighs compute alone, or to
have the devices of a stage share microbatches that they take in turn else. Not measured."""

CROSSING_CLEARLY = 0.97
"""Ratio by which crossing routes must shorten the rest of a step to be chosen. Not measured."""

ANEW_CLEARLY = 0.9
"""Ratio by which beginning a step anew must be shorter, by estimate, to be chosen over finishing it. Not measured."""

MOST_ENUMERATED = 2_000
"""Sets of pipelines up to which all are tried, as Oobleck does; beyond, the set whose step is shortest with the best
shares is taken. Measured: 1,506 sets of pipelines on 32 nodes, with 128 microbatches, take 0.8 s."""

# Splits into stages

SPLITS_ENUMERATED = 2_000
"""Number of splits up to which all are scored. Not measured."""

SPLIT_BUDGET = 4e6
"""States that the search for a bound may pass; it tries at least one step time. Measured: gaps and times of the presets
and of Table 3's cells (benchmarks/planner.py)."""

QUICK_STATES = 3e4
"""Devices x layers x stages up to which a search is quick, whatever the stages' device counts. Not measured."""

BOUND_STEPS = (0.0, 0.012, 0.03, 0.1, 0.17, 0.3, 1.0, 3.0, 10.0)
"""Shares below the best step time that are tried for a split, in order, until there is none; 0: just close. Not
measured."""

FIRST_BOUND_STEP = ((40, 0), (20, 1), (14, 2), (0, 3))
"""Index of the first step to try, by the passes over all states that the budget has room for. Not measured."""

PASSES_FOR_ROUNDS = 8
"""Passes above which the paths before and behind are each made twice, the second time with the other's. Not
measured."""

SMALL_SHARE_OF_BUDGET = 1 / 4
"""Share of the budget up to which there are taken to be many templates. Measured: 2,040 random jobs, of which eight
took 5 to 33 s (docs/explanation/planner.md)."""

BUDGET_OF_LOOK = 6
"""Budget for each state that a look needs. Not measured."""

BUDGET_OF_STATE = 4e3
"""Budget for one state of a level of a closer look. Not measured."""

MOST_LOOKS = 10
"""Most closer looks at a step time. Not measured."""

LOOKS_OF_MANY = 3
"""Most closer looks at a step time where there are many templates. Measured: as `SMALL_SHARE_OF_BUDGET`."""

LOOKS_IF_LARGE = 2
"""Most closer looks at a step time in large spaces, where they are expensive. Not measured."""

BRANCH_LOOKS = 3
"""Most looks of branch and bound. Not measured."""

SHARE_OF_LOOK = 0.6
"""Share of the remaining events that one look may simulate. Not measured."""

BRANCH_EVENTS = 6e7
"""Most events that branch and bound simulates with the full budget, alone. Not measured."""

BRANCH_EVENTS_BESIDE_LOOKS = 1e7
"""Most events that branch and bound simulates with the full budget where closer looks follow it. Not measured."""

BUDGET_FOR_BRANCHES = 22
"""Budget for each state from which branch and bound may come to an end. Measured: gaps of Table 3's cells
(docs/explanation/planner.md)."""

EVENTS_PER_STATE = 6.0
"""Events that take as long as what a look at a state needs before. Not measured."""

NEIGHBOUR_EVENTS = 1e6
"""Most events that are spent on neighbours of the best splits. Not measured."""

FULL_SHARE_OF_BUDGET = 1 / 8
"""Share of the budget from which that many neighbour events are spent; with less of it, fewer are. Measured: as
`SMALL_SHARE_OF_BUDGET`."""

MOST_NEIGHBOURS = 200
"""Most neighbours of one split that are scored. Not measured."""

SPLITS_LOOKED_AT = 4
"""Number of best splits that are looked at, one after the other, until none of them has better neighbours. Not
measured."""

NEIGHBOURS_AT_ONCE = 16
"""Neighbours that are scored at once, before the list of those that may still be among the best is renewed. Not
measured."""

SHARE_OF_BEAM = 0.1
"""Share of the events spent once they are used up, only to find good splits, at all numbers of stages together. Not
measured."""

MOST_BEAM_LEVELS = 40
"""Most numbers of stages for which that share is spent: each takes time even where it holds little. Not measured."""

EVENTS_PER_ROW = 15
"""Events that take as long as one more stage of one branch, which may not pass the first conditions. Not measured."""

STRETCH_STAGES = 3
"""Number of last stages whose lengths stretches remember. Not measured."""

STRETCH_GRAIN = 1e-7
"""Share of the budget to which lengths of stretches are rounded down, so that equal ones are equal. Not measured."""

MAX_COUNTS = 64
"""Most different numbers of devices of a stage. Not measured."""

MANY_SIZES = 8
"""Numbers of nodes above which half as many limits on the state are tried for shadows. Measured: as
`SMALL_SHARE_OF_BUDGET`."""

STATE_LIMITS = 10
"""State limits that are tried for templates with room for shadows, up to `MANY_SIZES`. Not measured."""

FEW_STATE_LIMITS = 5
"""State limits that are tried for templates with room for shadows, above `MANY_SIZES`. Measured: as
`SMALL_SHARE_OF_BUDGET`."""

FULL_BUDGETS = 8
"""Number of templates that get the whole budget of one search; more of them share it. Not measured."""

RANGE_CANDIDATES = 50
"""Most candidates of each number of microbatches of a range that are tried with the others. Not measured."""

# Sets of pipelines, placement, transfers

EXACT_GROUPS_COST = 20_000
"""Sums of tables, weighted by their size, up to which the search is exact. Not measured."""

GROUPS_PRECISION = 1e-6
"""Relative precision to which the step time is the least. Not measured."""

SENDER_ATTEMPTS = 4
"""Most attempts at lowering what the busiest sender sends; a further one hardly ever finds anything. Not measured."""

STAGES_SEARCHED = 9
"""Most stages on a node for which all sets are searched; more of equal size are matched to devices node by node. Not
measured."""

MOST_TRANSITIONS = 20_000
"""Most transitions of the exact search over zones, above which it is skipped, where a layer is in one zone only. Not
measured."""

FEW_TRANSITIONS = 2_000
"""Most transitions of the exact search over zones where some zone has one replica of a layer too many. Not measured."""

WORTH_SPLITTING_BYTES = 1 << 20
"""Parameter bytes that the busiest node must be spared for groups to be split; the optimizer's state goes along.
Measured: a message more costs some 100 microseconds, in which a fast link carries three times as much."""

STATE_OF_FREE = 0.9
"""Share of what a step leaves free of a link that state for the next plan may take beside it. Measured: state reaches
0.89 of what a connection does (benchmarks/joining.py)."""

STATE_OF_STEP = 0.1
"""Share of a step for which state may take a link in any case: so much longer may it be. Not measured."""

STEPS_AHEAD = 500
"""Steps that a plan is taken to last: they weigh its step time against the transfers before it. Not measured."""

HARDLY_BETTER = 0.999
"""Ratio to what a plan takes, transfers included, above which another one is not made to see whether its transfers are
shorter. Not measured."""

PROMISING = 1.25
"""Ratio of step times, in closed form, above which a plan is not worth a simulation. Measured: the forms are within 16%
of it, sums between pipelines aside."""

# Rerouting and the rest of a struck step

DETOUR_BUDGET = 15_000
"""Units of work (a phase of a hop for one microbatch) that are simulated, but for plans of which two take longer.
Measured: a tenth of a second at most."""

DETOUR_HEADS = (0.0, 1.0, 2.0)
"""Weights of a worker's wait for its first microbatch as load; which is best depends on the order of work. Not
measured."""

DETOUR_SPARES = (4, 2, 1, 0, 8, 16, 32)
"""Spare microbatches in flight, as tried in order. Measured: with 4 most steps are as short as can be
(benchmarks/reroute.py)."""

TURN_ROUNDS = 3
"""Rounds of settling the microbatches' turns. Measured: more gain nothing."""

WORTH_MOVING = 0.99
"""Share of the step time below which new pipelines are made, where nodes that came have no place otherwise. Not
measured."""

FINISHING_BUDGET = 10_000
"""Units of work that are simulated to know how far the step is, and to try others. A larger rest is done in the usual
way; with so many pipelines, few survivors idle. Measured: a tenth of a second at most."""

FINISHING_SHARE = 0.05
"""Share of a step's time that may be spent on this search: all wait meanwhile. Not measured."""

SIMULATED_UNIT_S = 1e-5
"""Seconds that simulating a unit takes. Not measured."""

FINISHING_SPARE = 4
"""Spare microbatches in flight for a worker whose routes cross, where the memory allows for it. Measured: as
`DETOUR_SPARES`."""

FINISHING_HEADS = (1.0, 0.0)
"""Weights of the wait for a first microbatch; see `planaria.planner.reroute.routes.Detours.deal`. Not measured."""

LONG_REST = 1.1
"""A rest of a step that takes this many steps of the plan it began with, or more, is compared with beginning the step
anew. Not measured."""

AUDITS_BEYOND = 3.0
"""So many standard deviations more audits than are expected of a worker in a step have room in its memory. Not
measured."""

# First plans and plans after a change

MOST_EVEN_SETS = 8
"""Even sets that are estimated: so many of the best by compute, and as many of the fewest pipelines; of hundreds of
nodes fewer, as estimates take longer there. Not measured."""

MOST_NODES_ESTIMATED = 2048
"""Nodes of all plans together that are estimated, beyond `LEAST_TRIED`: estimates take longer for larger plans. Not
measured."""

MOST_NUMBERS_TRIED = 3
"""Numbers of pipelines of which the quickest set by compute is tried. Not measured."""

FREQUENT_LOSSES = 0.01
"""Share of the time until the next loss that the best plan is expected to lose by it, for rings to be tried: what
shadows compute costs some hundredths of a step at least. Not measured."""

UNEVEN_CLEARLY = 0.99
"""Ratio by which an uneven set must make a step shorter than even ones do: a loss in its largest pipeline costs more.
Not measured."""

ALIKE = 0.02
"""Share within which plans are as good as the best where workers share cores: all have about the same work to do. Of
those that use most nodes the one with most pipelines is taken: it has more replicas, and shorter pipelines wait less
for each other. Measured: docs/figures/benchmarks.md, shared cores."""

LEAST_TRIED = 2
"""Number of grids, even sets and plans with split backwards, of each, that are tried however many nodes there are. Not
measured."""

NEAR_NUMBERS = 2
"""Difference to the present number of pipelines within which others are searched. Measured: by others (Odyssey, section
IV-A)."""

NEXT_NUMBERS = 1
"""Difference to the present number of pipelines within which the quickest set, however uneven, is looked for. Not
measured."""

MOST_BUILT = 6
"""Shapes of which plans are made: the best in closed form, of each number of pipelines first. It knows no sums of
gradients, which take longer the more there are: the best by compute must not crowd out those with fewer pipelines. Not
measured."""

WORTH_A_STEP_BESIDE = 1.25
"""Ratio of step times above which a plan is not also tried with its state moved beside a step. Not measured."""

MOST_GRIDS = 2
"""Grids that are estimated: the quickest in closed form. Not measured."""

# What losses and changes cost

ALL_STOP_SHARE = 0.5
"""Share of a step that a loss in its middle costs where all stop: of half a step nearly all is between stages, in no
accumulator. Measured: 0.44 to 0.8 in virtual time, and it can be begun anew (benchmarks/adaptive.py --virtual)."""

TAKEN_OVER_SHARES = 0.3, 0.65, 0.8
"""Shares of a step that a loss costs where a shadow goes on, which then does the work of two: with eager-eager,
eager-lazy and lazy-lazy. Measured: means over all nodes and five moments of a step, of five rings of one to four
pipelines in virtual time: 0.55 to 0.8 for eager-lazy."""

FORWARD_SHARE = 1 / 3
"""Share of the forward in a layer's work; eager shadows compute another stage's, unless a bubble holds it. Not
measured."""

MEAN_TIME_BETWEEN_FAILURES_S = 3 * 3600.0
"""Seconds between failures, where nobody says. Measured: by others; Llama 3.1's training had 419 in 54 days (Odyssey,
section II-B)."""

USUAL_DECISION_S = 0.1
"""Processor seconds of a decision, until one was measured. Measured: for 16 nodes and 64 microbatches, on 2 cores of an
AMD EPYC virtual machine."""

CHANGE_S = 0.002
"""Seconds by which a plan's first step is longer than the next, beside the decision and what is waited for, until
measured. Measured: of 16 emulated workers on an idle machine most were below 0.003 (docs/figures/benchmarks.md)."""

DEGRADED_SAVES_S = 60.0
"""Seconds between checkpoints under a degraded plan, where the user wants none every so many steps. Not measured."""

RESTORE_S = 1.0
"""Seconds from the loss of a layer's last replica to the first step from a checkpoint, beside the steps that are lost,
until measured. Not measured."""

FORECAST_GRAIN = 2
"""Grain of what is known of the time to come: the factor from one value to the next. Not measured."""

ORACLE_RUNS = 32
"""Runs that the oracle keeps at each disturbance; of those in one state, the one that has trained most by then. Not
measured."""

# Compiled loops

WORTH_COMPILING_S = 1.0
"""Seconds of interpreted loops from which importing numba pays off. Not measured."""

INTERPRETED_EVENTS_PER_S = 5e6
"""Events that interpreted loops simulate in a second: forwards and backwards of one microbatch on one stage. Measured:
6 to 8 million (docs/explanation/planner.md)."""

INTERPRETED_STAGES_PER_S = 2e6
"""Stages that interpreted loops process in a second. Not measured."""
