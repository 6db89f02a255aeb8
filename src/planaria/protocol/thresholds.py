"""Thresholds of what the coordinator's machine believes of a run, and when it acts.

Each line says what it decides, and what it was measured on. How plans are weighed is in `planaria.plan.thresholds`.
"""

from __future__ import annotations

# Who is lost

DETECTOR_TICK_S = 0.1
"""Seconds between two rounds of the failure detector. Not measured."""

PRECOMPUTE_REST = 1.0
"""Rest after a piece of a precomputed decision, as a multiple of its duration: workers may need the processor. None
after a piece of a decision that is certain to be needed. Not measured."""

DEVICE_ALONE_S = 0.05
"""Seconds after the end of a worker in which the others of its node may end too: then the node is lost, else the device
alone. Not measured."""

DETECTOR_AWAY_S = 0.5
"""A failure detector that runs this many seconds late was itself stopped or overloaded. Not measured."""

OVERDUE_S = 0.5
"""Seconds after which a heartbeat is overdue; there is one every 0.2 s. Not measured."""

MISSED_BEATS = 5
"""Heartbeats that do not come, after which a worker is silent. Not measured."""

WORKED_S = 1e-3
"""Seconds more of work, from one heartbeat to the next, that count as working; waiting takes next to none. Not
measured."""

UNMEASURED_INSTRUCTION_S = 10.0
"""Seconds that an instruction may take beside its estimate, before anything was measured. Not measured."""

FIRST_PAUSE_S = 0.02
"""Seconds between the first two attempts of a worker to connect. Not measured."""

LONGEST_PAUSE_S = 0.5
"""Most seconds between two attempts to connect; each pause doubles, less up to half of it at random. Not measured."""

MOST_WRONG = 2
"""Nodes of one host that computed wrong, after which no more are started there. Not measured."""

PROBATION_STEPS = 10
"""Steps in which all is audited that a new node computes on a host where one computed wrong. Not measured."""

CUT_OFF_S = 1.0
"""Seconds that an unreachable peer may stay in the plan before the coordinator is told. Not measured."""

MOST_HELD = 256
"""Most messages of one connection that are held until its proof. Not measured."""

MAX_NODES = 1 << 20
"""Only node numbers below this are accepted; a node that joins later takes the next free one. Not measured."""

MOST_SENT = 4
"""Most times that a piece of state is sent; its receiver is out of reach if none arrives whole. Not measured."""

MOST_BLOWS = 3
"""Most steps begun anew within `SOON_STEPS` because of one worker's messages to another; one more is a loss. Not
measured."""

SOON_STEPS = 10
"""Steps within which one more step begun anew, or node out of memory, is no accident. Not measured."""

# Which nodes are slow

AGREEING_WINDOWS = 3
"""Windows in a row that must show another speed. One or two may be chance: a page fault, a checkpoint's copy. Not
measured."""

MOST_AGREEING_WINDOWS = 24
"""Most windows that must agree, for a node that changed often within the last `REMEMBERED_WINDOWS`. Not measured."""

REMEMBERED_WINDOWS = 100
"""Windows for which a change of a node's speed is remembered. Not measured."""

SLOWER_FACTOR = 1.4
"""Factor by which a speed must differ from the known one. Errors of profiles and the noise of shared cores are within
it. Measured: on nodes of one speed, single steps show speeds down to 0.75, and now and then one of any kind."""

LEAST_COMPUTE_S = 0.005
"""A step in which no worker computes for this many seconds says nothing: the interpreter is what is measured. Not
measured."""

HARMFUL_SHARE = 0.8
"""A node counts as slower only if it computes for at least this share of the time of most: else no other waits for it,
and it may only have so little to do that the interpreter is what is measured. Not measured."""

FAST_AGAIN = 0.85
"""Speed above which a slow node counts as fast again: far above `1 / SLOWER_FACTOR`, below which it became slow. Not
measured."""

SPEED_GRAIN = 0.05
"""Speeds are multiples of this. Finer ones would be chance, and nodes of one speed are planned for together. Not
measured."""

WORTH_CHANGING = 0.98
"""A plan is left for one whose step takes at most this share of the time. Both are estimates of one kind, so what is
off in one is off in the other. Not measured."""

WORTH_RESTING = 0.95
"""A node is left out if a step then takes at most this share of the time: a resting node is one less to lose. Not
measured."""

MOST_RESTING = 3
"""Most slow nodes, the slowest, that the job is tried without. Not measured."""

FIRST_REST_STEPS = 20
"""Steps that a node rests for when it is first left out. Not measured."""

# How many nodes a run has

LEAST_WORTH = 0.5
"""A node is given back if the share of the throughput that is lost without it is below this part of its share of the
cost: then samples a dollar grow. Nodes cost the same where there are no prices. Not measured."""

STEPS_BEFORE_GIVING_BACK = 50
"""Steps with the same nodes and prices after which it is asked what one of them brings, and again after twice as many.
Not measured."""

STEPS_UNTIL_WANTED_AGAIN = 1000
"""Steps for which no node is taken in the place of one that was given back; twice as many each time. Not measured."""

# What a run learns of itself

LEARNT_AGAIN_S = 600.0
"""Seconds after which what was learnt is written down again: on another host it counts as of then. Not measured."""

MEASURED_STEPS = 64
"""How many of a plan's last steps are compared with its estimate. Not measured."""

CALIBRATED_AFTER = 8
"""Steps of one plan that are enough to tell how far the estimates of this machine are off. Not measured."""

USUAL_STEPS = 9
"""Undisturbed steps whose median is what a disturbed step would have taken. Not measured."""

TRANSITIONS_KEPT = 8
"""Measurements kept of each kind; their median counts. Not measured."""

LEAST_MOVE_S = 0.002
"""Seconds below which an expected transfer says nothing of the links. Not measured."""

MOST_STRETCH = 20.0
"""Most times that a transfer may take longer than expected for that to be believed of the next. Not measured."""

UNMOVED_S = 0.01
"""Seconds, until measured, from sending a plan until all workers are ready where no state moves. Not measured."""

RESTORES_KEPT = 9
"""Restores whose median rate counts: one that a busy machine held up is no measure of the storage. Not measured."""

LOSSES_EXAMINED = 16
"""How many of the last losses are examined for coming in a storm. Not measured."""

CHANCE = 1e-3
"""Losses are no chance if chance alone would bring them so close together no more often than this. Not measured."""

PLANS_CARRIED = 8
"""How many of the last plans under which a step was committed are kept: their devices hold what was put on them. Not
measured."""

# When plans are looked for

FAILURES_RARER = 2.0
"""How many times longer than when the plan was chosen the expected time to the next loss must be. Not measured."""

BEFORE_VOTES = 0.8
"""Share of a step's expected time after which no piece is begun that may not be done when votes come in. Not
measured."""

MOST_PAIRED = 32
"""Most nodes of a plan for which losses of pairs are precomputed: with more, each answer takes too long. Not
measured."""

MOST_ASKED = 96
"""Most questions about one plan, where some are about two nodes. Not measured."""

# When checkpoints are written

CHECKPOINT_SHARE = 0.01
"""Share of the time that checkpoints may cost. Not measured."""

LONGEST_INTERVAL_S = 15 * 60.0
"""Most seconds between two checkpoints, whatever they cost. Not measured."""

FIRST_CHECKPOINT_S = 1.0
"""Seconds from the start of training to the first checkpoint. Not measured."""

UNMEASURED_INTERVAL_S = 60.0
"""Seconds between two checkpoints, as others are told while the cost is unknown. Not measured."""

LEAST_REST = 20.0
"""Least time from one order to the next, as a multiple of what the last one took to be whole on disk: writing takes at
most a twentieth of the time, and a loss at most the time between two, the last one's writing and a step. Not
measured."""

COSTS_KEPT = 5
"""Measurements kept; their median counts. The first checkpoints of a run are slow. Not measured."""

COSTS_SURE = 3
"""Measurements from which a cost is believed however high it is. Not measured."""

SAVE_AGAIN_S = 5.0
"""Seconds until a run that is to end tries again to save its state. Not measured."""

# Links between hosts

ZONES_APART = 1.25
"""How many times longer or shorter a message across zones must take for a class of its own. Not measured."""

FAR_OFF = 2.0
"""How many times longer or shorter than in its class a message of a single pair of hosts must take to count by itself.
Not measured."""

LINK_MATTERS = 1.5
"""By what factor links must count otherwise than before for plans to be made anew. Not measured."""

ESTIMATE_HOLDS = 0.05
"""By how much of what steps take their estimate may be off without being corrected. Not measured."""

MOST_SLOWDOWN = 16.0
"""How many times slower or faster than probed links may count, as steps show. Not measured."""

SLOWDOWN_HALVINGS = 12
"""Halvings of the range in which the slowdown is looked for: it is found to 0.2%. Not measured."""

FLOWS_EVERY = 8
"""Steps after which workers tell what they have sent to whom. Not measured."""

FLOW_MATTERS = 2.0
"""By what factor bytes that flow anyway must pass faster or slower than in the plan's first steps for the link to count
otherwise. Not measured."""

LEAST_FLOW_BYTES = 1 << 20
"""Fewest bytes between two hosts whose rate says something of the link. Not measured."""

LEAST_FLOW_S = 0.02
"""Fewest seconds that bytes are under way whose rate says something of the link. Not measured."""

COMPARED_BYTES = 1 << 20
"""Bytes of the message by which links are compared. Not measured."""

PROBED_IN_ZONE = 2
"""Most hosts of its own zone with which a newcomer's links are measured. Not measured."""

PROBED_ACROSS_ZONES = 2
"""Most hosts of other zones with which a newcomer's links are measured. Not measured."""

RECORDS_SEARCHED = 4096
"""Newest records searched for one that is told again: more than there are between two steps. Not measured."""
