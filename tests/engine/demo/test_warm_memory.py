"""The token memory's file makes the next run faster: more tokens a pass on new scenes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.demo.scenes import draw_scene
from engine.events import Finished
from engine.loading import LoadedModel, load_model
from engine.prompts import Message
from engine.session import Request, Session, SessionOptions

SCENES = 20


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model("demo", "cpu")


def run(demo: LoadedModel, file: Path, seeds: Sequence[int]) -> Finished:
    """One run of `recap generate` a scene, all with this memory file; the last one's result."""
    for seed in seeds:
        with Session(demo, SessionOptions(memory_file=file)) as session:
            question = Message("user", "Describe the image.", (draw_scene(seed)[0],))
            *_, last = session.generate(Request([question], max_tokens=128))
    assert isinstance(last, Finished)
    return last


def mean_acceptance(results: Sequence[Finished]) -> float:
    """Over all passes of all results."""
    passes = sum(result.stats.passes for result in results)
    return sum(result.stats.pass_tokens for result in results) / passes


def test_runs_with_a_warm_memory_accept_more_tokens_a_pass(
    demo: LoadedModel, tmp_path: Path
) -> None:
    new_scenes = range(7_000, 7_000 + SCENES)
    cold = [run(demo, tmp_path / f"{seed}.safetensors", [seed]) for seed in new_scenes]
    file = tmp_path / "shared.safetensors"
    run(demo, file, range(8_000, 8_000 + SCENES))
    warm = [run(demo, file, [seed]) for seed in new_scenes]
    assert [result.token_ids for result in warm] == [result.token_ids for result in cold]
    assert mean_acceptance(warm) > 1.2 * mean_acceptance(cold)
