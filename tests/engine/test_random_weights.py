"""Models of a config alone: they compute as a loaded one would, and need no checkpoint."""

import json
from pathlib import Path

import pytest
import torch

from engine.errors import ModelError, UnsupportedModel, UsageError
from engine.prompts import EncodedPrompt
from engine.random_weights import random_model
from engine.target import Target
from engine.tree import DraftTree
from tests.models import FLAGSHIPS
from tests.zoo import Zoo


@pytest.mark.parametrize("family", FLAGSHIPS)
def test_a_config_alone_makes_a_model_that_verifies_trees(zoo: Zoo, family: str) -> None:
    folder = zoo.folder_of(family, None)
    model, found = random_model(str(folder / "config.json"), "cpu", "float32")
    real = zoo.loaded(family).model
    assert found.model_type == family
    assert not model.training
    assert model.num_parameters() == real.num_parameters()
    target = Target(model, found)
    target.prefill(EncodedPrompt(torch.arange(16)[None], {}, 0, ""), 8)
    assert target.verify(DraftTree([3])).isfinite().all()


def test_a_model_s_folder_is_enough_of_a_name_and_its_own_dtype_the_default(zoo: Zoo) -> None:
    model, _ = random_model(str(zoo.folder_of("qwen2", None)), "cpu")
    assert model.dtype == torch.float32
    half, _ = random_model(str(zoo.folder_of("qwen2", None)), "cpu", "bfloat16")
    assert half.dtype == torch.bfloat16


def test_a_config_of_no_use_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    config = json.loads((zoo.folder_of("qwen2", None) / "config.json").read_text())
    file = tmp_path / "config.json"

    def asked(**changes: object) -> None:
        file.write_text(json.dumps(config | changes))
        random_model(str(file), "cpu")

    with pytest.raises(UsageError, match="quantised"):
        asked(quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UnsupportedModel, match="gpt2"):
        asked(model_type="gpt2")
    with pytest.raises(ModelError, match="cannot be loaded"):
        asked(hidden_act="none such")
    file.write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        random_model(str(file), "cpu")
    with pytest.raises(ModelError, match="no such folder"):
        random_model(str(tmp_path / "none.json"), "cpu")
