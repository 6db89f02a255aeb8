"""Limits of what the runtime waits for, reads and starts: timeouts, sizes of messages, numbers of processes.

Each line says what it decides, and what it was measured on. What plans and decisions depend on is in
`planaria.plan.thresholds` and `planaria.protocol.thresholds`, and those of views and alerts are in
`planaria.runtime.observers.thresholds`.
"""

from __future__ import annotations

# Connections

REQUEST_TIMEOUT_S = 10.0
"""Seconds that a command waits for the coordinator's answer. Not measured."""

SESSION_CONNECT_S = 10.0
"""Seconds that a worker's attempt to reach the coordinator may take. Not measured."""

PEER_CONNECT_S = 5.0
"""Seconds that a worker's attempt to reach another worker may take. Not measured."""

GROUP_CONNECT_S = 30.0
"""Seconds in which the two members of a process group connect to each other, once each knows where the other is. Not
measured."""

GROUP_END_S = 1.0
"""Seconds for which a worker that ends waits for each thread that works on a process group. Not measured."""

UNREACHABLE_PAUSE_S = 0.1
"""Seconds between two attempts at an unreachable host: in the first second after its cable is back, its entry among the
kernel's neighbours may still be that of a host that is gone. Not measured."""

STATE_UNSENT_BYTES = 256 * 1024
"""Bytes of state that a kernel may hold unsent, which messages of a step share the wire with. Not measured."""

STATE_SHARE = 0.25
"""Bytes of state that are sent beside each byte of messages and sums that wait. Measured: with none, the state that
three hosts sent to a fourth at 0.2 Gbit/s came 0.25 s after their sums, of a step of 1.05 s; 0.125 to 0.6 do equally
well."""

PACED_BELOW_BYTES_PER_S = 2.5e8
"""Bytes a second of a host's wire from which sums go to several hosts as fast as each takes them. Measured: at 1 Gbit/s
it was two busy cores that four replicas waited for, and nothing changed with the pace."""

UNPACED_EVERY = 16
"""Steps of which sums of one go as fast as they can, to show whether the wire takes more than its probe. Not measured.
"""

WIRE_IS_FASTER = 1.15
"""How many times faster than probed a wire must be to count as faster: rates of single steps differ. Not measured."""

GIVEN_WAY_S = 1e-3
"""Seconds between two looks at whether state still has to give way to messages of a step. Not measured."""

MAX_PAYLOAD_BYTES = 1 << 36
"""Longest payload in bytes of a message between workers. Not measured."""

MAX_HEADER_BYTES = 64 * 1024
"""Longest header in bytes of a message between workers. Not measured."""

HELLO_LIMIT_BYTES = 4096
"""Longest first frame: a connection that has not shown the token gets no memory for more. Not measured."""

CONTROL_READ_BYTES = 1 << 16
"""Bytes that are read at once of a control connection. Measured: with 256 KiB the allocator asks the kernel for pages
each time, and a heartbeat takes three times as long to be read (21 and 6.5 us)."""

GREETING_WITHIN_S = 5.0
"""Seconds that a worker's connection may stay without its greeting. Not measured."""

LISTENER_TICK_S = 0.5
"""Seconds between two looks of a worker's listener at whether it is to end. Not measured."""

TOLD_AT_A_TIME = 256
"""Workers that are told a plan for which others hurry more, between two looks at what comes. Not measured."""

FRAMES_KEPT = 4
"""Messages of which the coordinator keeps the bytes, for all who get the same. Not measured."""

BACKLOG = 4096
"""Most connections that wait to be accepted: while no coordinator is there, those of all workers. Not measured."""

MOST_ROUNDS_HEARD = 1000
"""Most rounds of reading what was sent before a loss counts; each accepts one connection. Not measured."""

HELLO_WITHIN_S = 10.0
"""Seconds that a connection may stay without showing the job's token. Not measured."""

LOST_AFTER_S = 10.0
"""Seconds that data may stay unacknowledged by the other kernel. A busy or stopped process does not matter: its kernel
answers. What it does not read for so long does. Not measured."""

IDLE_S = 10
"""Seconds of silence after which a kernel asks the other whether it is there. Not measured."""

PROBE_EVERY_S = 5
"""Seconds between two such questions. Not measured."""

PROBES = 3
"""Such questions without an answer that end a connection. Not measured."""

MAX_STRANGERS = 256
"""Most connections that have not shown the token; as many as a run has agents and workers, where those are more.
Measured: of 1,024 agents that came at once under TLS, some were sent away in their handshake with 256 for all."""

TELL_EVERY_S = 10.0
"""Seconds between two reports of refusals: a flood of them is one line, not thousands. Not measured."""

MAX_LINK_BYTES = 1 << 30
"""Limit of a message in bytes, for the sake of having one: both ends are ours. Not measured."""

MAX_SOCKETS = 2
"""Most sockets that come with one request. Not measured."""

BLOCK_PIECE_BYTES = 1 << 20
"""Bytes of a stream's block that one message brings to a host without the run folder: a coordinator that sends one is
soon at the next message again. Not measured."""

BLOCK_AGAIN_S = 0.1
"""Seconds until such a host asks again for a block that is not read yet. Not measured."""

AWAITS_SAMPLES_S = 1.0
"""Seconds for which a worker waits for samples of a stream before it tells the coordinator, and between two such
words. Not measured."""

# The coordinator and its supervisor

GOODBYE_S = 5.0
"""How long workers may take to end after the run before they are killed. Not measured."""

OPENING_FACTOR = 10.0
"""How much longer than the launching process a worker may take to open a dataset before it joins. Not measured."""

OVERSUBSCRIBED = 10
"""How many times longer a runnable process of this machine may be silent: it may be short of cores. Not measured."""

MAX_ADDED = 1024
"""Most nodes that one request may start. Not measured."""

GONE_SHOWN = 32
"""Most nodes that are gone and still told of to `planaria top`. Not measured."""

MEMORY_TOLD_EVERY_S = 10.0
"""Seconds between two heartbeats that tell how much memory a worker holds. Measured: to look takes 1.5 ms of a process
that maps 0.4 GB, so 0.015% of a core."""

TOP_EVERY_S = 1.0
"""Seconds between two questions of `planaria top`. Not measured."""

TOP_KEYS_S = 0.1
"""Seconds for which `planaria top` waits for a key before it looks for an answer. Not measured."""

TOP_PATIENCE_S = 20.0
"""Seconds for which `planaria top` waits for a run that does not answer: a new coordinator may be coming. Not
measured."""

RECENT_KILL_S = 5.0
"""Seconds after a rise of the count within which a dead process is taken for one that was counted. Not measured."""

THINNED_EVERY = 4096
"""Entries after which one takes the place of all but the newest, so that a long run's journal is read in no time. Not
measured."""

ENTRIES_KEPT = 64
"""How many of the newest entries stay as they are, for people who look into the journal. Not measured."""

LEASE_S = 3
"""Seconds for which a coordinator leads without a word from etcd, where the journal is there; etcd may grant more.
Not measured."""

LEASE_ROUNDS = 6
"""How often a leader says that it leads while its lease lasts. Not measured."""

SIGHT = 1 / 3
"""Share of a lease: a standby that etcd has not answered for longer takes no lead from anybody before it has seen etcd
for as long, so that a leader which was cut off from it as well can say its word first. Not measured."""

LEAD_POLL_S = 0.1
"""Seconds between two looks of a standby at the lead. Not measured."""

ETCD_HURRIES_S = (0.25, 0.5)
"""Seconds that one member of etcd may take to connect, and to answer what may be asked twice, when all are asked for
the first and for the second time. Not measured."""

ETCD_TIMEOUT_S = 1.0
"""Seconds that it may take when all are asked for the third and last time, and to answer all else. Not measured."""

ETCD_PAUSE_S = 0.05
"""Seconds until etcd's members are asked again when none answered. Not measured."""

ETCD_PAGE = 1024
"""Keys that are read from etcd at a time. Not measured."""

SILENT_COORDINATOR_S = 1.0
"""Seconds without a word after which a worker looks whether another coordinator leads, where one may. Not measured."""

QUIET_LEADER_S = 0.25
"""Seconds between two such looks while etcd hears nothing of the leader, or nobody leads. Not measured."""

ENGINE_GIVE_UP_S = 86400.0
"""Seconds that an agent which an engine started waits for its coordinator: longer than that may be in a queue. Not
measured."""

LAST_WORDS_S = 60.0
"""Seconds that an agent leaves a standby which leads, to write how the run ended. Not measured."""

MAX_RESTARTS = 5
"""Most coordinators that may die one after the other without a commit: then it is no accident. Not measured."""

TAIL_BYTES = 4000
"""Bytes of the coordinator's log that are shown to whoever has to find out why it died. Not measured."""

LOSSES_COUNTED = 16
"""Most losses of a trace that count: a longer trace counts with its rate, and not with its length. Not measured."""

READERS_S = 1.0
"""Seconds that a claim waits for readers, which hold the lock for microseconds. Not measured."""

READ_AHEAD = 2000
"""Records that a standby reads between two looks at the lead: whoever leads knows what was told. Measured: 1,000 take 9
ms on a quiet core."""

STANDBY_CLAIM_S = 0.1
"""Seconds that a standby which leads waits for the claim: a leader that is stopped or cut off may hold it for ever. Not
measured."""

CLAIM_RETRY_S = 0.02
"""Seconds between two attempts at a claim. Not measured."""

COMMAND_WITHIN_S = 20.0
"""Seconds after which a command of the user's, which tells of an alert or of prices, is killed. Not measured."""

# Nodes and agents

AGENT_TICK_S = 0.1
"""Seconds between two looks of an agent at its node. Not measured."""

PING_EVERY_S = 1.0
"""Seconds between two pings of an agent. Not measured."""

AGENT_SILENCE_S = 3.0
"""Seconds without an answer to a ping after which a connection is given up and another is tried. Not measured."""

AGENT_CONNECT_S = 1.0
"""Seconds that an agent's attempt to connect may take. Not measured."""

AGENT_HANDSHAKE_S = 4.0
"""Most seconds that the TLS handshake after it may take: as long as an attempt to connect at first, and twice as long
after each that failed, as a coordinator shakes hands with thousands one after the other. Not measured."""

AGENT_AWAY_S = AGENT_CONNECT_S + 1.0
"""Seconds between two looks at the clock above which an agent cannot say that others were silent. Not measured."""

FIRST_OFFER_PAUSE_S = 0.25
"""Seconds until an agent offers its node again for the first time. Not measured."""

LONGEST_OFFER_PAUSE_S = 30.0
"""Most seconds until an agent offers its node again. Not measured."""

LONGEST_RETRY_S = 1.0
"""Most seconds between two attempts of an agent to connect. Not measured."""

SHORT_LIFE_S = 60.0
"""Seconds that a node must live to be offered again at once; others wait for pauses that double. Not measured."""

NOTICE_EVERY_S = 1.0
"""Seconds between two notices to workers that their node is to hand over its work. Not measured."""

STOPPED_LOOK_S = 0.2
"""Seconds between two looks that a caller should make. Not measured."""

METADATA_TIMEOUT_S = 2.0
"""Seconds that a cloud's metadata service may take to answer. Not measured."""

METADATA_BYTES = 4096
"""Longest answer of a cloud's metadata service that is read. Not measured."""

GOOGLE_GRACE_S = 30.0
"""Seconds left to a Spot VM after its notice. Measured: by others (Compute Engine documentation, "Spot VMs")."""

SIGTERM_GRACE_S = 30.0
"""Seconds that a SIGTERM announces, as Kubernetes and most clouds have it by default. Not measured."""

WORKERS_A_PROCESSOR = 64
"""Emulated workers for each processor: they mostly wait, so that some tens still keep to their profile's times. Not
measured."""

WORKERS_ON_ANY_MACHINE = 256
"""Workers that may start however few processors there are, as far as there is memory for them. Not measured."""

FILES_BESIDE = 48
"""Files that the parent of workers, or the coordinator, has open beside one for each worker. Measured: the demo needs
52, with its seven workers'."""

MOST_FILES = 65536
"""Most files that a process may open: enough for thousands of workers. Not measured."""

WORKER_BYTES = 16 << 20
"""Least memory of a worker in bytes: none takes less, whatever it trains. Not measured."""

# Work and measurements

CHUNK_FLOATS = 64 * 1024
"""Floats worked on at a time: such a chunk and its float64 copy stay in the second-level cache. Not measured."""

SMALL_FLOATS = 16 * 1024
"""Floats below which gradients are gathered before they are rounded, to save calls. Not measured."""

HUGE_FROM_BYTES = 8 << 20
"""Bytes of a vector from which it lies in huge pages of 2 MB. Measured: 10 GB/s at the first touch, not 2.7."""

READ_BYTES = 1 << 20
"""Bytes that are read at a time and summed while they are in the cache. Not measured."""

READ_TURN_BYTES = 4 << 20
"""Bytes that are read from one worker before it is another's turn. Not measured."""

WAKE_BYTES = 512 * 1024
"""Bytes of a message from which its reader is woken, as long as more than so many are to come. Measured: 1 MB
messages on loopback take a seventh less of a processor than read as they trickle in (benchmarks/connection.py)."""

BUFFERED_BYTES = 128 * 1024
"""Bytes that are read at once, behind a message's end, of those that come after it. Not measured."""

AHEAD_S = 0.010
"""Seconds of work that a host enqueues in advance: so far it may lag behind before its device has nothing to do. Not
measured."""

NAP_S = 1e-3
"""Seconds of a nap of a worker slowed on order: in naps it takes some processor time, and is not thought to hang. Not
measured."""

MEASURE_REPEATS = 5
"""Times that a layer's kind, sums, the optimizer and links are measured; the median counts. Not measured."""

CONTENTION_S = 0.5
"""Seconds for which so many processes do the same work at once, where that is measured; the median counts, of exchanges
the mean. Not measured."""

MOST_AT_ONCE = 8
"""Processes that do so at most where they are more than cores. Measured: with what two at work cost each other, the
estimate is 21 to 26% below the steps of seven workers on two cores, and 10 to 15% with what eight do."""

CONTENTION_REPEATS = 20
"""Times that each does it, after which a fifth of those seconds is enough. Not measured."""

START_TOLD_EVERY_S = 10.0
"""Seconds of a start after which its stage is told, where no panel shows it. Not measured."""

ROWS_LOOKED_AHEAD = 2
"""Samples that a layer runs on, before it is measured on more of them. Not measured."""

ENOUGH_S = 2.0
"""Seconds above which a kind of layer is repeated less often, but at least twice. Not measured."""

ALLOCATOR_ROUNDS = 5
"""Rounds of a stage in which the allocator's overhead is measured. Not measured."""

LEAST_SEEN_BYTES = 2 << 20
"""Activations below this size cannot be told from what else a process does. Not measured."""

MOST_OVERHEAD = 2.0
"""Share of overhead above which a measurement is taken for a disturbance. Not measured."""

LEAST_BACKWARD_SHARE = 1e-3
"""Least share of a backward that each half takes: the difference of two noisy times may be nothing, or less. Not
measured."""

MEASURED_PARAMETERS = 1 << 22
"""Parameters that sums and the optimizer are measured with, at most. Measured: on 2 cores with caches of 2 MB
each, a byte takes 0.6 of the time with a quarter of so many, and 1.07 with four times as many."""

LARGE_MESSAGE_BYTES = 4 << 20
"""Bytes of the message by which a link's bandwidth is measured. Not measured."""

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Objects between garbage collections. Simulations make no cycles of references and keep many objects, so that nothing
is found. Measured: looking every 700 of them takes 7% to 9% of a run on 1,024 nodes."""

LEAST_LENGTH_S = 10.0
"""Shortest built-in script, in seconds: recoveries take some tenths of a second, however short the steps are. Not
measured."""

REPLAY_TICK_S = 0.05
"""Seconds between two looks at whether a node that must go has gone. Not measured."""

END_S = 5.0
"""Seconds that a run that does not answer may take to tell of its end. Not measured."""

# Probes of links

PROBE_S = 0.2
"""Seconds for which a probe of a link sends while nothing trains; with small messages it takes 0.3 s at most. Measured:
200 and 1,000 Mbit/s between namespaces are found within 5%, on 2 cores with a load of 8."""

LIGHT_PROBE_S = 0.05
"""Seconds for which a probe of a link sends beside training. Measured: as with `PROBE_S`."""

ECHOES = 10
"""Small messages there and back in a probe, at most. Not measured."""

ECHOES_S = 0.1
"""Seconds that they may take. Not measured."""

PROBE_ROUND_TRIPS = 10
"""Round trips that a probe sends for where that is longer: a connection begins slowly. Not measured."""

PROBE_WINDOWS = (0.4, 0.6, 0.8, 1.0)
"""Shares of a probe's time between which arriving bytes are counted. A connection has found its rate by the first; the
fullest counts, since other programs may take the processor. Measured: the mean of all was 360 to 560 of 1,000 Mbit/s
between namespaces, on 2 cores with a load of 8."""

PROBE_ANSWER_WITHIN_S = 1.0
"""Seconds that the other end of a probe may be silent. Not measured."""

# Engines

ENGINE_POLL_S = 5.0
"""Seconds between two looks at an engine's tasks, and that a run may take to say how many nodes it has. Not
measured."""

RAY_POLL_S = 0.5
"""Seconds between two looks at the agents on Ray: it tells from memory. Not measured."""

RAY_CONNECT_S = 5.0
"""Seconds within which the address of a Ray cluster must take a connection. Not measured."""

RAY_END_S = 5.0
"""Seconds that agents on Ray have to end by themselves, and once more after a notice. Not measured."""

ENGINE_COMMAND_S = 60.0
"""Seconds that a command of an engine may take. Not measured."""

LONGEST_REPLACEMENT_S = 300.0
"""Longest pause in seconds before a task that is lost again and again is started once more; from 2 s on it doubles.
Not measured."""

RELEASED_FOR_S = 60.0
"""Seconds between two requests that an engine start a task which it holds back: its scheduler may take as long. Not
measured."""

MOST_FRUITLESS_STARTS = 5
"""Starts of a coordinator, one after the other, that bring no new checkpoint. Not measured."""
