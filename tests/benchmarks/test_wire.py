"""The benchmark over limited links, in a short form: four replicas on four hosts behind links of one rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import wire
from figures import Figures
from hosts import NoNamespaces
from wire_cases import GBIT, NUMERICS, Size, replicas

SIZE = Size(replicas=(4,), gbits=(1.0,), delays_ms=(0.0,), turns=1, steps=1, bytes_steps=3)
NUM_PARAMETERS = 3_300_000
"""The model has a few more."""

RING_BYTES = 6.0
"""That each of four owners in a ring sends for a parameter in float32."""


@pytest.mark.proof
@pytest.mark.parametrize("numerics", NUMERICS)
def test_sockets_send_what_the_sums_have(numerics: str) -> None:
    """As much as a ring's float32, in exact numerics too."""
    try:
        sent, parameters = wire.sent_in_a_step(Figures("wire"), "bytes", 4, replicas(4, numerics), SIZE)
    except NoNamespaces as reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")
    assert RING_BYTES <= sent / parameters / 4 <= 1.03 * RING_BYTES


@pytest.mark.proof
def test_links_are_as_slow_as_they_are_said_to_be(tmp_path: Path) -> None:
    """No step is shorter than what every host must send takes."""
    figures = Figures("wire")
    try:
        wire.sums(figures, SIZE)
    except NoNamespaces as reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")
    figures.finish(tmp_path / "figures.json")
    written = json.loads((tmp_path / "figures.json").read_text())["figures"]
    steps_ms = {figure["name"]: figure["value"] for figure in written if figure["unit"] == "ms"}
    least_ms = RING_BYTES * NUM_PARAMETERS / (SIZE.gbits[0] * GBIT / 8) * 1e3
    assert {name.split(".")[-2] for name in steps_ms} == {"torch", *NUMERICS}
    assert min(steps_ms.values()) >= least_ms
