"""Which plan is the next one, and what a run measures for that.

- `plan_selection`: asks the policy, answers with a proposal; `plan_validity`: whether the plan in force can go on.
- `policy_switch`: which policy is in force; `precompute`: decisions before they are needed.
- `replan_trigger`, `straggler_detection`, `straggler_policy`: when another plan is worth a thought.
- `step_times`, `transition_times`, `failure_rate`, `memory_limits`: what this run measured.

It puts no plan in force: `handlers.adopt_plan` does.
"""
