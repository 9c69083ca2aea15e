"""The completion scripts: up to date, and working in real shells."""

import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from recap_cli.app import app
from recap_cli.completions import describe, scripts
from tests.recap_cli.conftest import ROOT

FOLDER = ROOT / "completions"
SHOW_LINE = "\x14"  # Ctrl-T, which SHELLS binds to showing the line that is being edited
SHELLS = {
    "bash": (
        ["--norc", "--noprofile", "-i"],
        f"""bind -x '"\\C-t": echo "<$READLINE_LINE"'; source '{FOLDER}/recap.bash'""",
    ),
    "zsh": (
        ["-f", "-i"],
        f"""show() {{ print -r -- "<$BUFFER" }}; zle -N show; bindkey '^T' show; """
        f"""fpath=('{FOLDER}' $fpath); autoload -Uz compinit; compinit -u -D""",
    ),
}
LINES = [
    ("recap ge", "recap generate"),
    ("recap memory cl", "recap memory clear"),
    ("recap generate --im", "recap generate --image"),
    ("recap generate 'a prompt' --js", "recap generate 'a prompt' --json"),
    ("recap generate --dtype b", "recap generate --dtype bfloat16"),
    ("recap generate --dtype=b", "recap generate --dtype=bfloat16"),
    ("recap generate -i sc", "recap generate -i scene.png"),
    ("recap memory inspect --memory sc", "recap memory inspect --memory scene.png"),
]


def test_the_files_are_what_the_app_says_now() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert found == scripts(describe(app, ("recap",))), "run python -m recap_cli.completions"


def test_one_command_writes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recap_cli.completions", str(tmp_path / "new")]
    subprocess.run(command, cwd=ROOT, check=True)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "recap.bash",
        "_recap",
        "recap.fish",
    }


@pytest.mark.parametrize(("typed", "completed"), LINES)
@pytest.mark.parametrize("shell", list(SHELLS))
def test_tab_completes(tmp_path: Path, shell: str, typed: str, completed: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "scene.png").touch()
    arguments, setup = SHELLS[shell]
    child = pexpect.spawn(
        program,
        arguments,
        cwd=str(tmp_path),
        env={"TERM": "dumb", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        encoding="utf-8",
        timeout=20,
    )
    child.sendline(f"{setup}; echo RE''ADY")
    child.expect("READY\r\n")
    child.send(f"{typed}\t{SHOW_LINE}")
    child.expect_exact(f"<{completed}")
    child.close()


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
@pytest.mark.parametrize(("typed", "completed"), LINES)
def test_fish_completes(tmp_path: Path, typed: str, completed: str) -> None:
    (tmp_path / "scene.png").touch()
    script = f"source '{FOLDER}/recap.fish'; complete -C \"{typed}\""
    done = subprocess.run(
        ["fish", "-N", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    offered = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert completed.rpartition(" ")[2] in offered
