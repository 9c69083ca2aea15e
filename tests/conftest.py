"""For every test: no network, none of the user's files, one thread; tiny models made once a run."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # some tests fork

import pytest
import torch
from hypothesis import HealthCheck, settings

from engine import kernels
from engine.compiled import require_compiler
from engine.errors import UnbuildableOperators, UncompilableModel, UsageError
from engine.target import Target
from tests.zoo import Zoo

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

USER_VARIABLES = ("RECAP_MODEL", "NO_COLOR", "FORCE_COLOR")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny models are slower on two, and results must not depend on the machine's cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Workers of pytest-xdist ignore Ctrl-C, and what tests start would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Operators in C++, where they can be built, for all tests and what they start; built once."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
        if kernels.promising():
            with suppress(UnbuildableOperators):  # tests that need them say so
                kernels.load()
        yield


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Memories, and what is compiled, go to folders of the test's own; what the developer has set
    does not count."""
    monkeypatch.setenv("RECAP_MEMORY_DIR", str(tmp_path / "memories"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    for name in USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def compiler() -> None:
    """A C++ compiler, where there is one."""
    try:
        require_compiler(torch.device("cpu"))
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def nothing_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache without operators."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))


@pytest.fixture
def uncompilable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model can be compiled."""

    def refuse(_: Target) -> None:
        raise UncompilableModel("this model cannot be compiled (so)")

    monkeypatch.setattr(Target, "compile", refuse)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """Tiny random models of every family, and what transformers' own `generate` answers."""
    return Zoo(tmp_path_factory.mktemp("zoo"))
