import random
from pathlib import Path

import pytest

from engine.memory.paths import list_memories, memory_folder, memory_path, tokenizer_fingerprint


def test_memories_live_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECAP_MEMORY_DIR", raising=False)
    default = memory_folder()
    assert default.is_absolute()
    assert default.name == "recap"

    monkeypatch.setenv("RECAP_MEMORY_DIR", "")
    assert memory_folder() == default


def test_the_environment_names_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECAP_MEMORY_DIR", str(tmp_path))
    assert memory_path("0123456789abcdef") == tmp_path / "0123456789abcdef.safetensors"


def test_only_memories_are_listed(tmp_path: Path) -> None:
    names = ("b.safetensors", "a.safetensors", "a.safetensors.corrupt-1", ".a.safetensors.lock")
    for name in names:
        (tmp_path / name).touch()

    assert list_memories(tmp_path) == [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    assert list_memories(tmp_path / "missing") == []


def test_a_memory_of_which_only_damaged_copies_are_left_is_listed(tmp_path: Path) -> None:
    for time in ("1", "2"):
        (tmp_path / f"a.safetensors.corrupt-{time}").touch()
    assert list_memories(tmp_path) == [tmp_path / "a.safetensors"]


def test_a_fingerprint_is_the_same_everywhere_and_in_any_order() -> None:
    vocab = {"Ġthe": 1, "a\0b": 2, "": 0, "日本": 3, '"': 4}
    shuffled = random.Random(0).sample(list(vocab.items()), len(vocab))

    # Written down, so that a change of the formula, which orphans every file, is seen.
    assert tokenizer_fingerprint(vocab) == "3eabfe9f94ff28ab"
    assert tokenizer_fingerprint(dict(shuffled)) == "3eabfe9f94ff28ab"


@pytest.mark.parametrize("other", [{"a": 0, "b": 2}, {"a": 0}, {"a": 0, "c": 1}, {"a": 1, "b": 0}])
def test_another_vocabulary_has_another_fingerprint(other: dict[str, int]) -> None:
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint({"a": 0, "b": 1})
