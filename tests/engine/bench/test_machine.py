"""The machine's figures: there, and plausible."""

import torch

from engine.bench.machine import PeakMemory, machine


def test_the_machine_is_described() -> None:
    found = machine(torch.device("cpu"))
    assert found["cpu"]
    assert found["cores"] >= 1
    assert found["threads"] == torch.get_num_threads()
    assert found["gpu"] is None
    assert found["memory_bytes"] is None or found["memory_bytes"] > 2**28


def test_a_peak_is_forgotten_where_the_system_lets_it_be() -> None:
    peaks = PeakMemory()
    peaks.start()
    held = torch.ones(64 * 2**20)
    high = peaks.cpu_bytes()
    del held
    peaks.start()
    low = peaks.cpu_bytes()
    assert high is not None
    assert low is not None
    if peaks.of == "request":
        assert high - low > 128 * 2**20
    else:
        assert low >= high
    assert peaks.gpu_bytes() is None
