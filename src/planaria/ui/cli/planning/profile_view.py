"""The work of `planaria profile`: makes a profile (measured, preset, or read), corrects it, shows it, writes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planaria.job.errors import UserError
from planaria.plan.costs.model_profile import LayerCost, ModelProfile, device_counts
from planaria.plan.quantities import size
from planaria.runtime.run_folder.recorder import write_atomically
from planaria.runtime.run_folder.sentences import layer_range, link_class

if TYPE_CHECKING:
    from planaria.job.settings import Job

_MILLISECOND = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetChoice:
    """The options of the command for a preset; 0: the default.

    Attributes:
        model: the preset's name.
        device: the device's name.
        microbatch: samples.
        sequence_length: tokens of a sample.
        devices_per_node: times for 1, 2, 4, ... devices, up to all of a node.
        network_gbit: that messages between nodes reach, in Gbit/s.
        numerics: exact, fast or mixed: what is held and sent.
    """

    model: str
    device: str
    microbatch: int
    sequence_length: int
    devices_per_node: int
    network_gbit: float
    numerics: str


def from_preset(choice: PresetChoice) -> ModelProfile:
    """Returns a preset's profile. Raises UserError: an unknown name, or a number that makes no sense."""
    from planaria.profile.presets.presets import DEFAULT_NETWORK_GBIT_S, preset

    return preset(
        choice.model,
        choice.device,
        microbatch_size=choice.microbatch,
        sequence_length=choice.sequence_length,
        device_counts=device_counts(choice.devices_per_node),
        network_gbit_s=choice.network_gbit or DEFAULT_NETWORK_GBIT_S,
        numerics=choice.numerics,
    )


def measured(job: Job, folder: Path) -> ModelProfile:
    """Returns a profile measured now on this machine, in a process of its own, and kept for `planaria plan`."""
    from planaria.runtime.launch.training.profiling import profile_job
    from planaria.ui.cli.planning.profile_cache import ProfileCache, cache_folder

    profile = profile_job(job, import_path=folder)
    try:
        ProfileCache(cache_folder(os.environ)).keep(job, profile)
    except OSError as error:
        click.echo(f"planaria: warning: the profile could not be kept: {error}", err=True)
    return profile


def corrected(profile: ModelProfile, measured_s: float) -> ModelProfile:
    from planaria.profile.calibrate import calibrated

    return calibrated(profile, measured_s)


def write(profile: ModelProfile, output: Path) -> None:
    """Writes a profile, whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        write_atomically(output, msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error.strerror}. Name another file by -o.") from None


def show(profile: ModelProfile) -> None:
    """Prints a profile to standard output: a row for each run of equal layers."""
    from planaria.profile.calibrate import microbatch_s

    console = _console()
    console.print(
        f"[bold]{profile.name or 'model'}[/bold] on {profile.device.name or 'a device'}: {profile.num_layers} layers, "
        f"microbatch of {profile.microbatch_size}, {microbatch_s(profile) / _MILLISECOND:.3g} ms forward and backward"
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("layers")
    for title in ("each", "devices", "forward ms", "backward ms", "weights ms", "state", "kept", "workspace", "output"):
        table.add_column(title, justify="right")
    for first, end in _runs(profile.layers):
        _add_rows(table, profile.layers[first], first, end)
    console.print(table)
    for name, link in profile.links.classes.items():
        rate = f"{size(round(link.bandwidth_bytes_per_s))}/s"
        console.print(f"messages {link_class(name)}: {link.latency_s * 1e6:.3g} us and {rate}", style="dim")
    for each in profile.contention:
        factors = f"forwards and backwards {each.compute:.3g}, sums and the optimizer {each.update:.3g}"
        console.print(f"{each.num_devices} devices of a host at work: {factors} times as long", style="dim")
    console.print(Text(profile.provenance, style="dim"))


def _add_rows(table: Table, layer: LayerCost, first: int, end: int) -> None:
    for times in layer.times:
        row = [layer.name if end == first + 1 else f"{layer.name} ...", layer_range(first, end), ""]
        bytes_of = [layer.state_bytes, layer.activation_bytes, layer.workspace_bytes, layer.output_bytes]
        cells = [size(number) for number in bytes_of]
        if times is not layer.times[0]:
            row, cells = ["", "", ""], [""] * len(cells)
        seconds = (times.forward_s, times.backward_input_s, times.backward_weight_s)
        row[2] = str(times.num_devices)
        table.add_row(*row, *(f"{value / _MILLISECOND:.3g}" for value in seconds), *cells)


def _runs(layers: Sequence[LayerCost]) -> list[tuple[int, int]]:
    """Returns ranges of neighbours that cost the same."""
    runs: list[tuple[int, int]] = []
    for number, layer in enumerate(layers):
        previous = layers[runs[-1][0]] if runs else None
        if previous is not None and msgspec.structs.replace(previous, name=layer.name) == layer:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def show_presets() -> None:
    """Prints what presets and devices there are, with their sources."""
    from planaria.profile.presets.devices import DEVICES
    from planaria.profile.presets.presets import MODELS
    from planaria.profile.presets.shapes import num_parameters

    console = _console()
    models = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("preset", "parameters", "layers", "microbatch", "sequence", "source"):
        models.add_column(title, justify="left" if title in ("preset", "source") else "right", overflow="fold")
    for name, model in MODELS.items():
        layers = model.layers(1, model.sequence_length)
        models.add_row(
            name,
            f"{num_parameters(layers) / 1e6:,.0f} M",
            str(len(layers)),
            str(model.microbatch_size),
            str(model.sequence_length or "-"),
            "; ".join(part for part in (model.source, model.remarks) if part),
        )
    console.print(models)
    console.print()
    devices = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("device", "memory", "TFLOP/s", "reached", "source"):
        devices.add_column(title, justify="left" if title in ("device", "source") else "right", overflow="fold")
    for name, figures in DEVICES.items():
        devices.add_row(
            name,
            size(figures.memory_bytes),
            f"{figures.peak_flop_per_s / 1e12:.0f}",
            f"{figures.efficiency:.0%}",
            f"{figures.title}. {figures.source}",
        )
    console.print(devices)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=120, highlight=False)
