"""Models by name: found, loaded where the user wants them, or refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors
from safetensors.torch import load_file, save_file

from engine import loading
from engine.errors import ModelError, UsageError
from engine.loading import load_model, load_reader
from tests.zoo import Zoo, answers, session

Edit = Callable[[Path], None]


@pytest.fixture
def folder(zoo: Zoo, tmp_path: Path) -> Path:
    """A model's folder that a test may break."""
    return Path(shutil.copytree(zoo.folder_of("llama", None), tmp_path / "model"))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Hub's cache of the test's own, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(folder: Path, cache: Path, model_id: str) -> None:
    """Lay a model out in the Hub's cache as a download does."""
    home = cache / f"models--{model_id.replace('/', '--')}"
    commit = "0" * 40
    shutil.copytree(folder, home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)


def cut_weights(folder: Path) -> None:
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])


def empty_weights(folder: Path) -> None:
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(b"")


def lose_weights(folder: Path) -> None:
    (weights,) = folder.glob("*.safetensors")
    weights.unlink()


def lose_a_tensor(folder: Path) -> None:
    (weights,) = folder.glob("*.safetensors")
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})


def change_config(**changes: Any) -> Edit:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_weights, "a file of its weights is damaged or cut short; download it again"),
        (empty_weights, "a file of its weights is damaged or cut short; download it again"),
        (lose_weights, "cannot be loaded: "),
        (lose_a_tensor, "or have another shape than the config says: model.norm.weight"),
        (break_config, "cannot be loaded: "),
        (change_config(model_type="opt"), "opt models have not been tested"),
        (change_config(model_type="nonsense"), "has model type `nonsense`"),
        (
            change_config(intermediate_size=96),
            "another shape than the config says: model.layers.0.mlp",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_damaged_model_is_one_line(folder: Path, damage: Edit, reason: str) -> None:
    damage(folder)
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), "cpu")
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        ("awq", "gptqmodel and accelerate: pip install gptqmodel 'recap-vlm[accelerate]'"),
        ("bitsandbytes", "bitsandbytes and accelerate: pip install bitsandbytes 'recap-vlm"),
        ("compressed-tensors", "compressed_tensors and accelerate: pip install compressed-tensors"),
        ("fp8", "accelerate: pip install 'recap-vlm[accelerate]'"),
        ("gptq", "gptqmodel and optimum and accelerate: pip install gptqmodel optimum 'recap-vlm"),
        ("quanto", "optimum.quanto and accelerate: pip install optimum-quanto 'recap-vlm"),
    ],
)
def test_a_quantised_model_names_the_packages_that_it_needs(
    folder: Path, method: str, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.packages.find_spec", lambda name: None)
    change_config(quantization_config={"quant_method": method, "bits": 4})(folder)
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), "cpu")
    assert str(caught.value).startswith(f"{folder}: quantised with {method}, which needs {needs}")


@pytest.mark.parametrize("method", ["bitsandbytes", "compressed-tensors", "gptq", "quanto"])
def test_what_is_not_installed_here_is_named(folder: Path, method: str) -> None:
    change_config(quantization_config={"quant_method": method, "bits": 4})(folder)
    with pytest.raises(ModelError, match=r", which needs .*: pip install [^:]*$"):
        load_model(str(folder), "cpu")


# The Hub


def test_without_network_a_cached_model_loads_at_once(
    zoo: Zoo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(zoo.folder_of("llama", None), cache, "someone/tiny")

    def unreachable() -> Any:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(loading, "get_session", unreachable)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("waits for the network"))
    loaded = load_model("someone/tiny", "cpu", "float32")
    assert loaded.name == "someone/tiny"
    expected = zoo.answers("llama", torch.float32, None)
    assert answers(session(loaded), vision=False) == expected


@pytest.mark.usefixtures("cache")
def test_without_network_a_model_that_is_not_here_is_one_line() -> None:
    message = "^someone/tiny: not in the local cache, and huggingface.co is unreachable$"
    with pytest.raises(ModelError, match=message):
        load_reader("someone/tiny")


def test_without_network_a_half_downloaded_model_is_one_line(zoo: Zoo, cache: Path) -> None:
    put(zoo.folder_of("llama", None), cache, "someone/tiny")
    for weights in cache.rglob("*.safetensors"):
        weights.unlink()
    with pytest.raises(
        ModelError, match=r"does not .* have a file .*huggingface.co is unreachable$"
    ):
        load_model("someone/tiny")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (hub_errors.GatedRepoError, "access must be asked for on huggingface.co"),
        (hub_errors.RepositoryNotFoundError, "no such model on huggingface.co"),
        (EOFError, "cannot be loaded: EOFError: "),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    kind: type[Exception], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        if kind is EOFError:
            raise kind
        raise OSError("You are trying to\nread this") from kind.__new__(kind)

    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", refuse)
    with pytest.raises(ModelError, match=f"^someone/tiny: {reason}"):
        load_reader("someone/tiny")


def test_an_alias_is_the_model_of_that_id(zoo: Zoo, cache: Path) -> None:
    put(zoo.folder_of("idefics3", None), cache, "HuggingFaceTB/SmolVLM-Instruct")
    reader = load_reader("smolvlm")
    assert (reader.name, reader.family.model_type) == ("HuggingFaceTB/SmolVLM-Instruct", "idefics3")


@pytest.mark.parametrize("name", ["two words", "a--b", "x" * 200, "no/such/folder", "./none"])
def test_a_name_that_can_be_none_is_one_line(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_reader(name)
    assert str(caught.value).startswith(f"{name}: ")
    assert "\n" not in str(caught.value)


# Where a model computes


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama"])
def test_a_device_map_gives_the_same_answers(zoo: Zoo, family: str) -> None:
    folder = zoo.folder_of(family, None)
    spread = load_model(str(folder), dtype="float32", device_map="auto")
    ours = session(spread)
    expected = zoo.answers(family, torch.float32, None)
    assert answers(ours, vision=spread.family.vision) == expected


def test_a_device_map_without_accelerate_says_how_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.packages.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'recap-vlm\[accelerate\]'$"):
        load_model(str(folder), device_map="auto")


def test_a_device_and_a_device_map_exclude_each_other(folder: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        load_model(str(folder), "cpu", device_map="auto")


def test_a_device_that_is_not_there_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match="no cuda device here; usable: cpu"):
        load_model("demo", "cuda")
