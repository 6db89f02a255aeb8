"""Shapes of published transformers."""

from __future__ import annotations

from dataclasses import dataclass

from planaria.profile.presets.shapes import LayerShape, ModelShape, Operation, cross_entropy, elementwise, product


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The settings of a stack of equal transformer blocks.

    Attributes:
        num_blocks: in the stack.
        width: of the hidden state.
        inner_width: of the feed-forward part.
        vocabulary: tokens.
        positions: learned position embeddings; 0: rotary ones.
        types: learned token types (BERT's segments).
        causal: whether attention sees only what comes before.
        key_value_width: of keys and of values, which groups of heads share; 0: as wide as the hidden state.
        gated: feed-forward with a gate (SwiGLU), RMS norm, no biases, no dropout.
        tied: whether the head uses the embedding's weights.
        pooled: a transform before the head, and a second head on the first token (BERT).
    """

    num_blocks: int
    width: int
    inner_width: int
    vocabulary: int
    positions: int = 0
    types: int = 0
    causal: bool = True
    key_value_width: int = 0
    gated: bool = False
    tied: bool = True
    pooled: bool = False

    def layers(self, microbatch_size: int, sequence_length: int) -> tuple[LayerShape, ...]:
        rows = microbatch_size * sequence_length
        return (
            self._embedding(rows),
            *(self._block(f"block.{number}", rows, sequence_length) for number in range(self.num_blocks)),
            self._head(rows),
        )

    def _norm(self, rows: float) -> Operation:
        values = rows * self.width
        return elementwise(values, kept=values, weights=self.width * (1 if self.gated else 2))

    def _residual(self, rows: float) -> Operation:
        """Returns dropout (a mask of one byte, half a value) and addition."""
        values = rows * self.width
        return elementwise(values, operands=3, kept=0.0 if self.gated else values / 2)

    def _embedding(self, rows: float) -> LayerShape:
        values = rows * self.width
        tokens = self.vocabulary * self.width
        operations = [
            Operation(moved=3 * values, weights=tokens + (self.positions + self.types) * self.width, weight_reads=0),
        ]
        if self.pooled:
            operations.append(self._norm(rows))
        if not self.gated:
            operations.append(elementwise(values, kept=values / 2))
        return LayerShape(
            name="embedding",
            operations=tuple(operations),
            input_values=0,
            output_values=values,
            tied_parameters=tokens if self.tied else 0,
            exchanged_values=values,
        )

    def _block(self, name: str, rows: float, sequence_length: int) -> LayerShape:
        width, inner, biased = self.width, self.inner_width, not self.gated
        values = rows * width
        shared = 2 * (self.key_value_width or width)
        seen = sequence_length / 2 if self.causal else sequence_length
        # Fused: the matrix of scores is never in memory (Dao et al., 2022).
        attention = Operation(
            multiply_adds=2 * values * seen, moved=rows * (2 * width + shared), kept=rows * (width + shared)
        )
        rotary = (elementwise(2 * values),) if not self.positions else ()
        gate = 2 if self.gated else 1
        return LayerShape(
            name=name,
            operations=(
                self._norm(rows),
                product(rows, width, width + shared, bias=biased),
                *rotary,
                attention,
                product(rows, width, width, bias=biased),
                self._residual(rows),
                self._norm(rows),
                product(rows, width, gate * inner, bias=biased),
                elementwise(rows * inner, operands=gate + 1, kept=gate * rows * inner),
                product(rows, inner, width, bias=biased),
                self._residual(rows),
            ),
            input_values=values,
            output_values=values,
            exchanged_values=2 * values,
        )

    def _head(self, rows: float) -> LayerShape:
        width, values = self.width, rows * self.width
        operations: list[Operation] = []
        if self.pooled:
            operations += [
                product(rows, width, width),
                elementwise(values, kept=values),
                # On the first token alone: pooler, and whether the second sentence follows.
                Operation(weights=width * width + width + 2 * width + 2, launches=3),
            ]
        operations += [self._norm(rows), product(rows, width, self.vocabulary, bias=self.pooled)]
        return LayerShape(
            name="head",
            operations=(*operations, cross_entropy(rows, self.vocabulary)),
            input_values=values,
            output_values=0,
            tied_parameters=self.vocabulary * width if self.tied else 0,
            exchanged_values=values,
        )


def _gpt(num_blocks: int, width: int, positions: int) -> Transformer:
    return Transformer(num_blocks=num_blocks, width=width, inner_width=4 * width, vocabulary=50257, positions=positions)


_GPT2 = "Radford et al., Language Models are Unsupervised Multitask Learners (2019)"
_GPT3 = "Brown et al., Language Models are Few-Shot Learners (2020), table 2.1"

TRANSFORMERS: dict[str, ModelShape] = {
    "bert-large": ModelShape(
        title="BERT-Large",
        layers=Transformer(
            num_blocks=24,
            width=1024,
            inner_width=4096,
            vocabulary=30522,
            positions=512,
            types=2,
            causal=False,
            pooled=True,
        ).layers,
        microbatch_size=8,
        sequence_length=512,
        longest_sequence=512,
        published_parameters=340_000_000,
        source="Devlin et al., BERT (2019), section 3",
        remarks="every position goes through the masked-LM head",
    ),
    "gpt2-345m": ModelShape(
        title="GPT-2 345M",
        layers=_gpt(24, 1024, 1024).layers,
        microbatch_size=4,
        sequence_length=1024,
        longest_sequence=1024,
        published_parameters=355_000_000,
        source=_GPT2,
        remarks="the paper says 345 million; its repository corrects that to 355",
    ),
    "gpt2-1.5b": ModelShape(
        title="GPT-2 1.5B",
        layers=_gpt(48, 1600, 1024).layers,
        microbatch_size=2,
        sequence_length=1024,
        longest_sequence=1024,
        published_parameters=1_542_000_000,
        source=_GPT2,
    ),
    "gpt3-medium": ModelShape(
        title="GPT-3 medium (350M)",
        layers=_gpt(24, 1024, 2048).layers,
        microbatch_size=2,
        sequence_length=2048,
        longest_sequence=2048,
        published_parameters=350_000_000,
        source=_GPT3,
        remarks="dense attention in all blocks",
    ),
    "gpt3-2.7b": ModelShape(
        title="GPT-3 2.7B",
        layers=_gpt(32, 2560, 2048).layers,
        microbatch_size=1,
        sequence_length=2048,
        longest_sequence=2048,
        published_parameters=2_700_000_000,
        source=_GPT3,
        remarks="dense attention in all blocks",
    ),
    "gpt3-6.7b": ModelShape(
        title="GPT-3 6.7B",
        layers=_gpt(32, 4096, 2048).layers,
        microbatch_size=1,
        sequence_length=2048,
        longest_sequence=2048,
        published_parameters=6_700_000_000,
        source=_GPT3,
        remarks="dense attention in all blocks",
    ),
    "llama2-7b": ModelShape(
        title="Llama-2 7B",
        layers=Transformer(
            num_blocks=32, width=4096, inner_width=11008, vocabulary=32000, gated=True, tied=False
        ).layers,
        microbatch_size=1,
        sequence_length=4096,
        longest_sequence=4096,
        published_parameters=6_740_000_000,
        source="Touvron et al., Llama 2 (2023), and its published weights",
    ),
}
