"""Published figures of devices, and the shares of them that a training job gets."""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """A device as its maker describes it.

    Attributes:
        title: for people.
        memory_bytes: of its memory.
        peak_flop_per_s: dense, in half precision, without sparsity.
        memory_bytes_per_s: peak bandwidth of its memory.
        link_bytes_per_s: to another device of the node, one direction, peak.
        link_latency_s: of a message to another device of the node.
        efficiency: share of the peak that large half-precision products reach in training.
        source: where the figures are published.
    """

    title: str
    memory_bytes: int
    peak_flop_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    link_latency_s: float
    efficiency: float
    source: str


_NVLINK_S = 10e-6
_PCIE_S = 15e-6

DEVICES: dict[str, DeviceFigures] = {
    "v100": DeviceFigures(
        title="NVIDIA V100 SXM2 16 GB",
        memory_bytes=16 * GB,
        peak_flop_per_s=125e12,
        memory_bytes_per_s=900e9,
        link_bytes_per_s=150e9,
        link_latency_s=_NVLINK_S,
        efficiency=0.50,
        source="NVIDIA V100 datasheet (2020): 125 TFLOP/s, 900 GB/s, NVLink 300 GB/s both ways together",
    ),
    "t4": DeviceFigures(
        title="NVIDIA T4",
        memory_bytes=16 * GB,
        peak_flop_per_s=65e12,
        memory_bytes_per_s=320e9,
        link_bytes_per_s=16e9,
        link_latency_s=_PCIE_S,
        efficiency=0.35,
        source="NVIDIA T4 datasheet (2019): 65 TFLOP/s, 320 GB/s, PCIe 3.0 x16; its 70 W hold the clock down",
    ),
    "a40": DeviceFigures(
        title="NVIDIA A40",
        memory_bytes=48 * GB,
        peak_flop_per_s=149.7e12,
        memory_bytes_per_s=696e9,
        link_bytes_per_s=32e9,
        link_latency_s=_PCIE_S,
        efficiency=0.50,
        source="NVIDIA A40 datasheet (2021): 149.7 TFLOP/s, 696 GB/s, PCIe 4.0 x16 64 GB/s both ways",
    ),
    "a100": DeviceFigures(
        title="NVIDIA A100 SXM 80 GB",
        memory_bytes=80 * GB,
        peak_flop_per_s=312e12,
        memory_bytes_per_s=2039e9,
        link_bytes_per_s=300e9,
        link_latency_s=_NVLINK_S,
        efficiency=0.60,
        source="NVIDIA A100 datasheet (2021): 312 TFLOP/s, 2,039 GB/s, NVLink 600 GB/s both ways",
    ),
    "h100": DeviceFigures(
        title="NVIDIA H100 SXM",
        memory_bytes=80 * GB,
        peak_flop_per_s=989e12,
        memory_bytes_per_s=3350e9,
        link_bytes_per_s=450e9,
        link_latency_s=_NVLINK_S,
        efficiency=0.50,
        source="NVIDIA H100 datasheet (2023): 989 TFLOP/s without sparsity, 3.35 TB/s, NVLink 900 GB/s both ways",
    ),
    "h200": DeviceFigures(
        title="NVIDIA H200 SXM",
        memory_bytes=141 * GB,
        peak_flop_per_s=989e12,
        memory_bytes_per_s=4800e9,
        link_bytes_per_s=450e9,
        link_latency_s=_NVLINK_S,
        efficiency=0.50,
        source="NVIDIA H200 datasheet (2024): 989 TFLOP/s without sparsity, 4.8 TB/s, NVLink 900 GB/s both ways",
    ),
    "ascend-910b": DeviceFigures(
        title="Huawei Ascend 910B 64 GB",
        memory_bytes=64 * GB,
        peak_flop_per_s=320e12,
        memory_bytes_per_s=1600e9,
        link_bytes_per_s=196e9,
        link_latency_s=_NVLINK_S,
        efficiency=0.50,
        source=(
            "No public datasheet; 320 TFLOP/s, 1.6 TB/s and HCCS of 392 GB/s both ways as commonly reported "
            "(variants differ by 15%), 64 GB as in Odyssey, section V-A: calibrate it"
        ),
    ),
}
