"""Short names of models: each stands for one model of a family that is tested."""

from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils._validators import validate_repo_id

from engine.catalogue import MODELS, is_cached, resolved
from engine.families import FAMILIES


def test_every_model_has_a_tested_family_and_an_id_that_can_be() -> None:
    for model in MODELS:
        assert model.model_type in FAMILIES
        validate_repo_id(model.id)
        assert model.id.count("/") == 1
    for names in ([model.alias for model in MODELS], [model.id for model in MODELS]):
        assert len(set(names)) == len(names)


def test_the_names_that_people_ask_for_are_there() -> None:
    assert {"smolvlm", "qwen2.5-vl-7b", "llava-1.6-7b"} <= {model.alias for model in MODELS}


def test_an_alias_stands_for_an_id_and_other_names_for_themselves() -> None:
    assert resolved("Qwen2.5-VL-7B") == "Qwen/Qwen2.5-VL-7B-Instruct"
    for name in ("demo", "Qwen/Qwen2.5-VL-7B-Instruct", "./smolvlm", "none"):
        assert resolved(name) == name


def test_a_folder_goes_before_an_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smolvlm").mkdir()
    assert resolved("smolvlm") == "smolvlm"


def test_a_model_is_here_when_its_weights_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--some--one"
    snapshot = home / "snapshots" / "abc"
    assert not is_cached("some/one")
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text("{}")
    assert not is_cached("some/one"), "an unfinished download"
    (snapshot / "model.safetensors").write_text("")
    assert is_cached("some/one")
