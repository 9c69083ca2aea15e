"""Acceptance and time of one request: the one place where measures are computed.

Definitions are those of DESIGN section 4. Counts come from token ids only; the clock is the
decoding loop's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.tree import DraftTree

SOURCES = (
    *("contextual-3", "contextual-2", "token", "suffix", "lookup", "history", "recycled"),
    *("earlier-3", "earlier-2"),
)
"""Where a drafted token came from. RECAP: a three- or two-token key of this request, a one-token
key or a similar state, a repeated suffix, or a three- or two-token key of earlier requests. Its
rivals: copied from this request's text, or from that of earlier ones, or the target's recycled
predictions after the token before."""


@dataclass(slots=True)
class DecodeStats:
    """Running counts of one request; safe to read between passes.

    `kept_tokens` of the prompt were in the cache already, since the conversation's last request.
    All times are in seconds of wall clock. `acceptance_histogram[n]` counts verify passes that
    committed n tokens. `depth_reached[d - 1]` counts passes whose tree had a node at depth d,
    `depth_accepted[d - 1]` those that accepted one there.
    """

    kept_tokens: int = 0
    new_tokens: int = 0
    passes: int = 0
    pass_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    ttft_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    seed_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    acceptance_histogram: dict[int, int] = field(default_factory=dict)
    depth_reached: list[int] = field(default_factory=list)
    depth_accepted: list[int] = field(default_factory=list)
    source_drafted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))
    source_accepted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))

    def count_pass(self, tree: "DraftTree", path: Sequence[int], committed: int) -> None:
        """Count one verify pass.

        Args:
            tree: what was verified.
            path: the nodes of it that were committed, root first, ascending.
            committed: tokens committed, bonus token included, after any cut at a stop token.
        """
        accepted = path[1:]
        self.passes += 1
        self.pass_tokens += committed
        self.new_tokens += committed
        self.drafted += len(tree) - 1
        self.accepted += len(accepted)
        self.acceptance_histogram[committed] = self.acceptance_histogram.get(committed, 0) + 1
        for source in tree.sources[1:]:
            self.source_drafted[SOURCES[source]] += 1
        for node in accepted:
            self.source_accepted[SOURCES[tree.sources[node]]] += 1
        deepest = max(tree.depths)
        missing = deepest - len(self.depth_reached)
        self.depth_reached += [0] * missing
        self.depth_accepted += [0] * missing
        for depth in range(deepest):
            self.depth_reached[depth] += 1
        for depth in range(len(accepted)):
            self.depth_accepted[depth] += 1

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens committed by verify passes / verify passes (MAT); 1.0 is plain decoding."""
        return self.pass_tokens / self.passes if self.passes else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted draft tokens / drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tree_size(self) -> float:
        """Drafted tokens / verify passes."""
        return self.drafted / self.passes if self.passes else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Share of the passes reaching depth d + 1 that accepted a node there, by d."""
        pairs = zip(self.depth_accepted, self.depth_reached, strict=True)
        return [accepted / reached for accepted, reached in pairs]

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens committed by verify passes / time in them, drafting and learning included."""
        return self.pass_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def ms_per_pass(self) -> float:
        """Milliseconds a pass, drafting and learning included."""
        return 1e3 * self.decode_s / self.passes if self.passes else 0.0

    @property
    def draft_ms_per_pass(self) -> float:
        """Milliseconds a pass spent on drafting and learning."""
        return 1e3 * self.draft_s / self.passes if self.passes else 0.0

    def measures(self) -> dict[str, object]:
        """The measures of DESIGN section 4 under their names, ready for JSON."""
        return {
            "new_tokens": self.new_tokens,
            "passes": self.passes,
            "drafted_tokens": self.drafted,
            "accepted_tokens": self.accepted,
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "draft_acceptance_rate": round(self.draft_acceptance_rate, 4),
            "acceptance_histogram": {
                str(n): c for n, c in sorted(self.acceptance_histogram.items())
            },
            "acceptance_by_depth": [round(share, 4) for share in self.acceptance_by_depth],
            "passes_by_depth": list(self.depth_reached),
            "sources": {
                name: {
                    "drafted": self.source_drafted[name],
                    "accepted": self.source_accepted[name],
                }
                for name in SOURCES
            },
            "ttft_s": round(self.ttft_s, 6),
            "encode_s": round(self.encode_s, 6),
            "prefill_s": round(self.prefill_s, 6),
            "seed_s": round(self.seed_s, 6),
            "decode_s": round(self.decode_s, 6),
            "decode_tokens_per_s": round(self.decode_tokens_per_s, 3),
            "ms_per_pass": round(self.ms_per_pass, 4),
            "draft_ms_per_pass": round(self.draft_ms_per_pass, 4),
        }
