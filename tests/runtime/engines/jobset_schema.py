"""The fields of a JobSet that a launch writes, as JSON Schema: nothing else is allowed.

Written by hand after api/jobset/v1alpha2/jobset_types.go of kubernetes-sigs/jobset (v0.12), and after the rules of its
pkg/webhooks/jobset_webhook.go that a schema can express. A Job's own fields are Kubernetes' schema's affair.
"""

from __future__ import annotations

from typing import Any


def _closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


LABEL = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
JOBSET = _closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=_closed(["name"], name=LABEL, namespace=TEXT, labels=TEXTS, annotations=TEXTS),
    spec=_closed(
        ["replicatedJobs"],
        replicatedJobs=_list(
            _closed(
                ["name", "template"],
                name=LABEL,
                replicas=COUNT,
                template=_closed(["spec"], metadata={"type": "object"}, spec={"type": "object"}),
            )
        ),
        network=_closed(
            [], enableDNSHostnames={"type": "boolean"}, subdomain=LABEL, publishNotReadyAddresses={"type": "boolean"}
        ),
        successPolicy=_closed(["operator"], operator={"enum": ["All", "Any"]}, targetReplicatedJobs=_list(LABEL)),
        # RestartJob and RestartJobAndIgnoreMaxRestarts are refused while JobSet's feature gate RestartJob is off.
        failurePolicy=_closed(
            [],
            maxRestarts=COUNT,
            rules=_list(
                _closed(
                    ["name", "action"],
                    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                    action={"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]},
                    targetReplicatedJobs=_list(LABEL),
                )
            ),
        ),
        suspend={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
    ),
)
