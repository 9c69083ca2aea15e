"""Trains the demo model from scratch: `python -m engine.demo.train FOLDER`.

Checkpoints go to FOLDER/checkpoint.pt, the log to FOLDER/log.jsonl, and a model that transformers
loads to FOLDER/model. Started again on the same folder it goes on where it stopped, step for step
as if it had never stopped. Runs on two CPU cores.
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
from torch import nn
from torch.nn import functional as F
from transformers import Qwen2_5_VLForConditionalGeneration

from engine.demo.batches import Batch, Conversations
from engine.demo.build import IMAGE_TOKENS, new_model, new_tokenizer, save
from engine.demo.palette import COLOURS
from engine.demo.scenes import SIZES
from engine.demo.wording import KINDS


@dataclass(frozen=True, slots=True)
class Settings:
    """What a training run depends on, beside this package's code.

    Attributes:
        steps: length of the run.
        look_first: steps at the start in which only the eyes are trained, on pictures alone.
        simple_until: the step until which, after the eyes' phase, scenes have one or two shapes.
        batch: conversations a step; twice as many pictures while only the eyes are trained.
        muon_rate: Muon's learning rate, for the matrices inside the blocks.
        adam_rate: AdamW's learning rate, for embeddings, norms, biases and the patch projection.
        warm_up: steps of linear warm-up, of the eyes' phase and then of the whole.
        cool_down: the fraction of the run in which the rates fall linearly to zero.
        seed: of the initial weights and of the batches.
    """

    steps: int = 2450
    look_first: int = 300
    simple_until: int = 850
    batch: int = 32
    muon_rate: float = 2e-3
    adam_rate: float = 2e-3
    warm_up: int = 100
    cool_down: float = 0.25
    seed: int = 1

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
        # At these lengths torch's fused attention is the slower one: 0.8 s a step, not 0.5.
        self.model.model.language_model.set_attn_implementation("eager")
        self._data = Conversations(self.tokenizer, settings.seed)
        self.glance = Glance(self.model.config.text_config.hidden_size)
        self._optimisers = _optimisers(self.model, self.glance, settings)

    def advance(self) -> float:
        """Train for one step and return its loss in nats a token."""
        if self.step < self.settings.look_first:
            batch = self._data.batch(self.step, 2 * self.settings.batch)
            value = eyes_loss(self.model, self.glance, batch)
        else:
            most = 2 if self.step < self.settings.simple_until else 5
            batch = self._data.batch(self.step, self.settings.batch, most)
            value = loss(self.model, self.glance, batch)
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


class Glance(nn.Module):
    """Classifiers on image tokens that only help to train; they are no part of the saved model.

    Words reach the eyes' weights through the whole text model, which makes learning kinds and
    colours slow. `looks` asks each image embedding what is in its place, and `places` asks the
    text model's first layers where an image token is, which only they can know.
    """

    _CLASSES = (1 + len(KINDS), 1 + len(COLOURS), 1 + len(SIZES))
    LAYER = 2  # how many text layers `places` looks through

    def __init__(self, width: int):
        super().__init__()
        self.looks = nn.Linear(width, sum(self._CLASSES))
        self.places = nn.Linear(width, IMAGE_TOKENS)

    def looks_error(self, seen: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """Summed cross-entropies of kind, colour and size.

        Args:
            seen: (pictures * 9, width): the vision tower's output.
            cells: (pictures, 9, 3) int64: the right classes.
        """
        logits = self.looks(seen).float().split(self._CLASSES, dim=1)
        errors = [
            F.cross_entropy(guess, right)
            for guess, right in zip(logits, cells.flatten(0, 1).unbind(1), strict=True)
        ]
        return torch.stack(errors).sum()

    def places_error(self, hidden: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the place; `hidden` is (pictures * 9, width)."""
        logits = self.places(F.normalize(hidden, dim=1) * 16).float()
        right = torch.arange(len(hidden)) % IMAGE_TOKENS
        return F.cross_entropy(logits, right)


def eyes_loss(
    model: Qwen2_5_VLForConditionalGeneration, glance: Glance, batch: Batch
) -> torch.Tensor:
    """How badly the image embeddings tell what is in their places, through bfloat16 autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = model.model.visual(batch.pixel_values, grid_thw=batch.image_grid_thw)
        return glance.looks_error(seen.pooler_output, batch.cells)


def loss(model: Qwen2_5_VLForConditionalGeneration, glance: Glance, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy over the assistant's tokens, plus a tenth of the glance's errors.

    Right padding needs no mask: causal attention keeps it from every token that counts.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = model.model.visual(batch.pixel_values, grid_thw=batch.image_grid_thw).pooler_output
        embedded = model.get_input_embeddings()(batch.input_ids)
        is_image = batch.input_ids == model.config.image_token_id
        read = model.model.language_model(
            inputs_embeds=embedded.masked_scatter(is_image.unsqueeze(2), seen.float()),
            position_ids=batch.position_ids,
            use_cache=False,
            output_hidden_states=True,
        )
        spoken = batch.labels != -100
        logits = model.lm_head(read.last_hidden_state[spoken])
        aside = glance.looks_error(seen, batch.cells)
        aside = aside + glance.places_error(read.hidden_states[Glance.LAYER][is_image])
    return F.cross_entropy(logits.float(), batch.labels[spoken]) + 0.1 * aside


def _optimisers(
    model: Qwen2_5_VLForConditionalGeneration, glance: Glance, settings: Settings
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al., 2024) for the blocks' matrices, AdamW for everything else."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed_tokens" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed_tokens" in name]
    others += glance.parameters()
    muon = torch.optim.Muon(
        matrices, lr=settings.muon_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
    )
    adam = torch.optim.AdamW(others, lr=settings.adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
    return [muon, adam]


def train(folder: Path, settings: Settings, checkpoint_every_s: float = 120.0) -> Trainer:
    """Train in `folder` until `settings.steps`, going on from a checkpoint that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(settings)
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load_checkpoint(checkpoint)
    _log(folder, {"start": trainer.step, **asdict(settings)})
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
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    train(options.folder, Settings(steps=options.steps))


if __name__ == "__main__":
    main()
