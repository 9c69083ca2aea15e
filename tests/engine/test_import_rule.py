"""Imports point one way (STYLE): from the terminal to the engine, from the loop to the data."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine
import recap_cli

ENGINE, CLI = Path(engine.__file__).parent, Path(recap_cli.__file__).parent

# From below to above: a module imports only from layers before its own.
LAYERS = (
    {"errors", "files", "machine", "substitutes"},
    {"image_sources", "catalogue", "device_memory", "kernels", "transfers"},
    {"norms", "states"},
    {"options", "tree", "families", "images", "sizes", "turns", "packages"},
    {"repetition"},
    {
        "stats",
        "memory",
        "suffix",
        "budget",
        "kv_cache",
        "masks",
        "packing",
        "attention",
        "logits",
        "processors",
        "control_tokens",
    },
    {"fusion", "prompts", "demo", "narrowing"},
    {"prefix", "passes", "layers"},
    {"operators"},
    {"compiled"},
    {"drafters", "target", "loading"},
    {"decode", "random_weights"},
    {"text"},
    {"events"},
    {"counting", "transcript", "preparing"},
    {"session"},
    {"dry_run", "conversation"},
    {"bench"},
)
WITHOUT_TENSORS = ("errors", "options", "stats", "tree", "families", "suffix", "fusion", "events")
KNOW_TRANSFORMERS = {
    *("attention", "control_tokens", "kv_cache", "loading", "logits", "processors", "prompts"),
    "random_weights",
}


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Full names of what a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def part(name: str) -> str | None:
    """The part of the engine that a full name belongs to: `engine.memory.file` -> `memory`."""
    top, _, rest = name.partition(".")
    return rest.partition(".")[0] or None if top == "engine" else None


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


@pytest.mark.parametrize("path", modules(ENGINE), ids=lambda path: str(path.relative_to(ENGINE)))
def test_the_engine_knows_nothing_of_terminals(path: Path) -> None:
    assert packages(path).isdisjoint({"recap_cli", "typer", "rich", "click", "tests"})


@pytest.mark.parametrize("path", modules(ENGINE), ids=lambda path: str(path.relative_to(ENGINE)))
def test_a_module_imports_only_from_below(path: Path) -> None:
    own = path.relative_to(ENGINE).parts[0].removesuffix(".py")
    if own == "__init__":
        assert list(imported(path)) == []
        return
    others = {name for name in map(part, imported(path)) if name not in (None, own)}
    assert {name for name in others if name and layer(name) >= layer(own)} == set()


def test_every_part_of_the_engine_has_its_layer() -> None:
    found = {path.relative_to(ENGINE).parts[0].removesuffix(".py") for path in modules(ENGINE)}
    assert found - {"__init__"} <= {name for names in LAYERS for name in names}


@pytest.mark.parametrize("path", modules(ENGINE), ids=lambda path: str(path.relative_to(ENGINE)))
def test_transformers_is_known_to_its_adapters_only(path: Path) -> None:
    own = path.relative_to(ENGINE).parts[0].removesuffix(".py")
    if own not in {*KNOW_TRANSFORMERS, "demo"}:
        assert "transformers" not in packages(path)
    if own in (*WITHOUT_TENSORS, "memory"):
        assert "torch" not in packages(path)


def test_the_terminal_s_modules_load_without_torch() -> None:
    names = [
        ".".join(path.relative_to(CLI.parent).with_suffix("").parts)
        for path in modules(CLI)
        if path.name != "__main__.py"
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
