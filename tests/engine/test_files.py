"""How the names of files are understood."""

from pathlib import Path

import pytest

from engine.files import user_path


def test_a_tilde_is_the_home_unless_a_file_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert user_path("~/cat.png") == tmp_path / "home" / "cat.png"
    assert user_path("cat~.png") == Path("cat~.png")
    Path("~").mkdir()
    Path("~", "cat.png").touch()
    assert user_path("~/cat.png") == Path("~/cat.png")


def test_the_home_of_nobody_is_a_name_like_others() -> None:
    assert user_path("~no-such-user/cat.png") == Path("~no-such-user/cat.png")
