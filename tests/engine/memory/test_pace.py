"""The speed of machines, remembered beside a token memory."""

from pathlib import Path

import pytest

from engine.memory.file import clear_memory
from engine.memory.pace import MOST, read_pace, write_pace
from engine.memory.paths import list_memories, pace_path

PACE = {"cost": {"seconds": [0.1, 0.2]}}


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "0123456789abcdef.safetensors"


def test_what_is_remembered_comes_back_under_its_key(memory: Path) -> None:
    assert read_pace(memory, "one") is None
    write_pace(memory, "one", PACE)
    write_pace(memory, "two", {})
    assert read_pace(memory, "one") == PACE
    assert read_pace(memory, "three") is None


def test_the_keys_used_longest_ago_are_forgotten(memory: Path) -> None:
    for number in range(MOST):
        write_pace(memory, str(number), PACE)
    write_pace(memory, "0", PACE)
    write_pace(memory, "new", PACE)
    assert read_pace(memory, "1") is None
    assert read_pace(memory, "0") == PACE


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"format": 2, "paces": {"one": {}}}', b'{"format": 1}']
)
def test_a_file_that_cannot_be_read_is_begun_anew(memory: Path, content: bytes) -> None:
    memory.parent.mkdir()
    pace_path(memory).write_bytes(content)
    assert read_pace(memory, "one") is None
    write_pace(memory, "one", PACE)
    assert read_pace(memory, "one") == PACE


def test_it_is_private_and_goes_with_its_memory(memory: Path) -> None:
    write_pace(memory, "one", PACE)
    assert pace_path(memory).stat().st_mode & 0o777 == 0o600
    assert list_memories(memory.parent) == []
    assert clear_memory(memory)
    assert read_pace(memory, "one") is None
