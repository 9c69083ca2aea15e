"""Trains the demo model: `python -m engine.demo.train FOLDER`.

Checkpoints go to FOLDER/checkpoint.pt, the log to FOLDER/log.jsonl, and a model that transformers
loads to FOLDER/model. Started again on the same folder it goes on where it stopped, step for step
as if it had never stopped. The eyes are trained first, then the rest, at last both. `--bfloat16` is
a third faster on a CPU that has instructions for it, and many times slower on others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from engine.demo.batches import Conversations
from engine.demo.build import new_model, new_tokenizer, save
from engine.demo.losses import Glance, eyes_loss, text_losses
from engine.demo.muon import Muon


@dataclass(frozen=True, slots=True)
class Settings:
    """What a training run depends on, beside this package's code and where its weights start.

    Attributes:
        steps: length of the run.
        look_first: steps at the start in which only the eyes are trained, on pictures alone.
        look_again: the step from which on everything is trained; before, it is all but the eyes.
        simple_until: the step until which, after the eyes' phase, scenes have one or two shapes.
        batch: conversations a step; twice as many pictures while only the eyes are trained.
        muon_rate: Muon's learning rate, for the matrices inside the blocks.
        adam_rate: AdamW's learning rate, for embeddings, norms, biases and the patch projection.
        warm_up: steps of linear warm-up, of the eyes' phase and then of the rest's.
        cool_down: the fraction of the run in which the rates fall linearly to zero.
        seed: of the initial weights and of the batches.
        bfloat16: whether products are computed in bfloat16; else all is in float32.
    """

    steps: int = 4900
    look_first: int = 600
    look_again: int = 4200
    simple_until: int = 900
    batch: int = 24
    muon_rate: float = 2e-3
    adam_rate: float = 2e-3
    warm_up: int = 50
    cool_down: float = 0.25
    seed: int = 2
    bfloat16: bool = False

    def pace(self, step: int) -> float:
        """The factor on both learning rates at a step counted from zero."""
        warm = step if step < self.look_first else step - self.look_first
        left = (self.steps - step) / max(1.0, self.cool_down * self.steps)
        return min(1.0, (warm + 1) / self.warm_up, left)


class Trainer:
    """Model, optimisers and data, and the step that they have reached."""

    def __init__(self, settings: Settings):
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.step = 0
        self.tokenizer = new_tokenizer()
        self.model = new_model(self.tokenizer).train()
        # torch's fused attention does not say where a head looks, which `text_losses` asks.
        self.model.model.language_model.set_attn_implementation("eager")
        self._data = Conversations(self.tokenizer, settings.seed)
        self.glance = Glance(self.model.config.text_config.hidden_size)
        self._optimisers = _optimisers(self.model, self.glance, settings)

    def advance(self) -> float:
        """Train for one step and return what was made smaller."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.settings.bfloat16):
            value = self._error()
        torch.autograd.backward(value)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rates = (self.settings.muon_rate, self.settings.adam_rate)
        for optimiser, rate in zip(self._optimisers, rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * self.settings.pace(self.step)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        return value.item()

    def _error(self) -> torch.Tensor:
        """What this step makes smaller."""
        if self.step < self.settings.look_first:
            batch = self._data.batch(self.step, 2 * self.settings.batch)
            return eyes_loss(self.model, self.glance, batch)
        most = 2 if self.step < self.settings.simple_until else 5
        batch = self._data.batch(self.step, self.settings.batch, most)
        self.model.model.visual.requires_grad_(self.step >= self.settings.look_again)
        return text_losses(self.model, self.glance, batch).total

    def load_weights(self, folder: Path) -> None:
        """Start from the weights of a model that `save` wrote, with new classifiers."""
        saved = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        self.model.load_state_dict(saved.state_dict())

    def save_checkpoint(self, path: Path) -> None:
        """Write everything that `load_checkpoint` needs; a crash leaves the old file or the new."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "glance": self.glance.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load_checkpoint(self, path: Path) -> None:
        """Go on from a checkpoint; the settings may differ from those that it was made with."""
        state = torch.load(path, weights_only=True)
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.glance.load_state_dict(state["glance"])
        for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


def _optimisers(
    model: Qwen2_5_VLForConditionalGeneration, glance: Glance, settings: Settings
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al., 2024) for the blocks' matrices, AdamW for everything else."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed_tokens" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed_tokens" in name]
    others += glance.parameters()
    muon = Muon(matrices, settings.muon_rate)
    adam = torch.optim.AdamW(others, lr=settings.adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
    return [muon, adam]


def train(
    folder: Path, settings: Settings, init: Path | None = None, checkpoint_every_s: float = 120.0
) -> Trainer:
    """Train in `folder` until `settings.steps`, going on from a checkpoint that is there.

    Without a checkpoint the weights are random, or those of the model in the folder `init`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(settings)
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load_checkpoint(checkpoint)
    elif init is not None:
        trainer.load_weights(init)
    start = {"start": trainer.step, "init": None if init is None else str(init)}
    _log(folder, {**start, **asdict(settings)})
    saved, started, first = time.monotonic(), time.monotonic(), trainer.step
    recent: list[float] = []
    while trainer.step < settings.steps:
        recent.append(trainer.advance())
        now = time.monotonic()
        if trainer.step % 20 == 0:
            pace_s = (now - started) / (trainer.step - first)
            mean = sum(recent) / len(recent)
            _log(folder, {"step": trainer.step, "loss": round(mean, 4), "s": round(pace_s, 3)})
            recent.clear()
        if now - saved > checkpoint_every_s or trainer.step == settings.steps:
            trainer.save_checkpoint(checkpoint)
            save(folder / "model", trainer.model, trainer.tokenizer)
            saved = now
    return trainer


def _log(folder: Path, record: dict[str, Any]) -> None:
    with (folder / "log.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of `python -m engine.demo.train`."""
    parser = argparse.ArgumentParser(prog="python -m engine.demo.train", description=__doc__)
    parser.add_argument("folder", type=Path, help="where checkpoint, log and model go")
    parser.add_argument("--steps", type=int, default=Settings().steps, help="length of the run")
    parser.add_argument("--init", type=Path, help="model folder to take the first weights from")
    parser.add_argument("--bfloat16", action="store_true", help="compute products in bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    settings = Settings(steps=options.steps, bfloat16=options.bfloat16)
    train(options.folder, settings, options.init)


if __name__ == "__main__":
    main()
