"""What training makes smaller: errors in the words, and four that help to learn to look.

Words alone would teach looking slowly, for they reach the eyes through the whole text model, and a
question that names a shape is answered rightly only when every stage of finding it works.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Qwen2_5_VLForConditionalGeneration

from engine.demo.batches import Batch
from engine.demo.build import IMAGE_TOKENS
from engine.demo.palette import COLOURS
from engine.demo.scenes import SIZES
from engine.demo.wording import KINDS

_PLACES_AFTER = 2  # text layers, after which an image token must know its place
_NAMES_LAYER = 2  # the text layer, from zero, whose first head must look at what a name names
_DUE_LAYER = 4  # the one whose first head must look at the shape that is told of next


class Glance(nn.Module):
    """Classifiers on image tokens that only help to train; they are no part of the saved model.

    `looks` asks each image embedding what is in its place, and `places` asks the text model's first
    layers where an image token is, which only they can know.
    """

    _CLASSES = (1 + len(KINDS), 1 + len(COLOURS), 1 + len(SIZES))

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
        logits = self.looks(seen).split(self._CLASSES, dim=1)
        errors = [
            F.cross_entropy(guess, right)
            for guess, right in zip(logits, cells.flatten(0, 1).unbind(1), strict=True)
        ]
        return torch.stack(errors).sum()

    def places_error(self, hidden: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the place; `hidden` is (pictures * 9, width)."""
        logits = self.places(F.normalize(hidden, dim=1) * 16)
        right = torch.arange(len(hidden)) % IMAGE_TOKENS
        return F.cross_entropy(logits, right)


def eyes_loss(
    model: Qwen2_5_VLForConditionalGeneration, glance: Glance, batch: Batch
) -> torch.Tensor:
    """How badly the image embeddings tell what is in their places."""
    seen = model.model.visual(batch.pixel_values, grid_thw=batch.image_grid_thw)
    return glance.looks_error(seen.pooler_output, batch.cells)


@dataclass(frozen=True, slots=True)
class TextLosses:
    """Mean cross-entropies: of the assistant's tokens, of `Glance`, and of `looks_loss` at names
    and at what is due."""

    words: torch.Tensor
    looks: torch.Tensor
    places: torch.Tensor
    names: torch.Tensor
    due: torch.Tensor

    @property
    def total(self) -> torch.Tensor:
        """What training makes smaller once the eyes have learned to look."""
        return self.words + 0.1 * (self.looks + self.places) + 0.2 * (self.names + self.due)


def text_losses(
    model: Qwen2_5_VLForConditionalGeneration, glance: Glance, batch: Batch
) -> TextLosses:
    """How badly the model reads and answers; its text model must use eager attention.

    Right padding needs no mask: causal attention keeps it from every token that counts.
    """
    seen = model.model.visual(batch.pixel_values, grid_thw=batch.image_grid_thw).pooler_output
    embedded = model.get_input_embeddings()(batch.input_ids)
    is_image = batch.input_ids == model.config.image_token_id
    read = model.model.language_model(
        inputs_embeds=embedded.masked_scatter(is_image.unsqueeze(2), seen.float()),
        position_ids=batch.position_ids,
        use_cache=False,
        output_hidden_states=True,
        output_attentions=True,
    )
    spoken = batch.labels != -100
    logits = model.lm_head(read.last_hidden_state[spoken])
    return TextLosses(
        words=F.cross_entropy(logits, batch.labels[spoken]),
        looks=glance.looks_error(seen, batch.cells),
        places=glance.places_error(read.hidden_states[_PLACES_AFTER][is_image]),
        names=looks_loss(read.attentions[_NAMES_LAYER][:, 0], batch.named, is_image),
        due=looks_loss(read.attentions[_DUE_LAYER][:, 0], batch.due, is_image),
    )


def looks_loss(looks: torch.Tensor, right: torch.Tensor, is_image: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of where a head looks from the tokens of which it is known.

    Args:
        looks: (batch, length, length): the head's attention.
        right: (batch, length, 10): `Batch.named` or `due`; the tenth place is the picture's end.
        is_image: (batch, length) bool; a picture's nine tokens and its end are adjacent.
    """
    rows, ends = right.any(2).nonzero().unbind(1)
    first = is_image.int().argmax(1)[rows]
    places = first.unsqueeze(1) + torch.arange(IMAGE_TOKENS + 1)
    given = looks[rows, ends].gather(1, places).clamp(min=1e-9)
    return -(right[rows, ends] * given.log()).sum() / max(1, len(rows))
