"""The machine: what it is, and how much of its memory a request takes."""

import os
import platform
import sys
from pathlib import Path
from typing import Literal

import torch

from engine.bench.document import Machine
from engine.machine import cpu_name

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"


def machine(device: torch.device) -> Machine:
    """The machine on which a model on this device computes."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory_bytes(),
        "platform": platform.platform(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


class PeakMemory:
    """The most memory that the process held since `start`.

    Attributes:
        of: what the CPU's peak is a peak of. Only Linux can forget an earlier one: elsewhere it is
            that of the whole process so far, which says little of one request.
    """

    def __init__(self) -> None:
        self.of: Literal["request", "process"] = "process"
        try:
            _CLEAR.write_text(_RESET_PEAK)
            _resident_peak()
        except (OSError, StopIteration):
            return
        self.of = "request"

    def start(self) -> None:
        """Forget earlier peaks, the GPUs' too."""
        if self.of == "request":
            _CLEAR.write_text(_RESET_PEAK)
        for gpu in _gpus():
            torch.cuda.reset_peak_memory_stats(gpu)

    def cpu_bytes(self) -> int | None:
        """Peak of resident memory, model included; None where the system does not tell."""
        return _resident_peak() if self.of == "request" else _process_peak()

    def gpu_bytes(self) -> int | None:
        """Peak of what tensors took on all GPUs, model included; None where none is used."""
        gpus = _gpus()
        return sum(map(torch.cuda.max_memory_allocated, gpus)) if gpus else None


def _gpus() -> range:
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if used else 0)


def _resident_peak() -> int:
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _process_peak() -> int | None:
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not POSIX
        return None
