"""What computes, by name: for benchmarks, and for what is remembered of its speed."""

import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch


def machine_name(device: torch.device) -> str:
    """What the time of a pass depends on beside the model: device, threads, versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers"))
    return f"{device.type}, {name}, {torch.get_num_threads()} threads, {versions}"


def cpu_name() -> str:
    """The processor's name where the system tells, else its architecture."""
    return _cpu_info().get("model name") or platform.processor() or platform.machine()


def cpu_features() -> str:
    """What instructions the processor has, where the system tells."""
    return _cpu_info().get("flags") or _cpu_info().get("Features") or ""


@cache
def _cpu_info() -> dict[str, str]:
    """What Linux says of the first processor; elsewhere nothing."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
