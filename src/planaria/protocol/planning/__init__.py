"""Which plan is the next one, and what a run measures for that.

- `plan_selection`: asks the policy, answers with a proposal; `plan_validity`: whether the plan in force can go on,
  and when it is weighed again though nobody came or went. `node_count`: how many nodes are wanted.
- `policy_switch`: which policy is in force; `precompute`: decisions before they are needed.
- `straggler_detection`: which nodes are slow, judged step by step; `straggler_policy`: when that is worth another plan,
  and which rest.
- `step_times`: steps beside their estimate, which the first of them correct; `transition_times`, `failure_rate`.
- `memory_limits`: workers that ran out of memory, and what later plans stay below.
- `measured_cluster`: how fast nodes and links are known to be, and how far estimates are off; of it `measured_links`:
  what hosts measured of the links between them; `link_flows`: where what passes shows another link than before.

It puts no plan in force: `handlers.adopt_plan` does.
"""
