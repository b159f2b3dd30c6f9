"""The ends of a pass and what lies between its stages: embedding, output head with greedy sampling, hand-off.

The embedding is split by words: each chip looks up those that it has, and the answers are added up.
The head is split by vocabulary: each chip finds its best word, and pairs of score and word (8 bytes per token) are
gathered.  A pipeline of stages lies along axis ``dp``: each permute hands one stage's activations to the next.
"""

import jax
import jax.numpy as jnp

from codesign.layers import mlp
from codesign.reference.mlp import feed_forward
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, gather, rms_norm


class Embedding(Reference):
    """Rows of a table (vocabulary, hidden) by word."""

    def __init__(self, hidden: int, vocab: int, draw: Draw):
        self.table = draw.weight(vocab, hidden, fan=1.0)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        return {"table": P("tp")}

    def __call__(self, words: jax.Array, part: Part = ALONE) -> jax.Array:
        """Activations (T, hidden) of words (T,)."""
        table = self.table[...]
        with jax.named_scope("embed"):
            first = jax.lax.axis_index("tp") * table.shape[0] if part.tp > 1 else 0
            here = (words >= first) & (words < first + table.shape[0])
            x = jnp.where(here[:, None], table[jnp.where(here, words - first, 0)], 0.0)
        if part.tp == 1:
            return x
        with jax.named_scope("embed_reduce"):
            return jax.lax.psum(x, "tp")


class Head(Reference):
    """Final norm, output projection (hidden, vocabulary) and the best word of each token."""

    def __init__(self, hidden: int, vocab: int, draw: Draw):
        self.scale = draw.constant(1.0, hidden)
        self.head = draw.weight(hidden, vocab, fan=hidden)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        return {"head": P(None, "tp")}

    def __call__(self, x: jax.Array, part: Part = ALONE) -> jax.Array:
        """Words (T,) for tokens (T, hidden)."""
        x = rms_norm(x, self.scale[...])
        with jax.named_scope("head"):
            logits = x @ self.head[...]
        best, word = jnp.max(logits, axis=1), jnp.argmax(logits, axis=1).astype(jnp.int32)
        if part.tp == 1:
            return word
        word = word + jax.lax.axis_index("tp").astype(jnp.int32) * logits.shape[1]
        with jax.named_scope("sample_gather"):
            scores, words = gather(best[None], 0, part), gather(word[None], 0, part)
        return jnp.take_along_axis(words, jnp.argmax(scores, axis=0)[None], axis=0)[0]


class Pipeline(Reference):
    """Feed-forward stages one after the other, each on its own ``tp`` chips, with one or several residual streams.

    Every chip runs the whole pass: what its stage answers before its turn is not used.
    """

    def __init__(self, shape: mlp.MLP, hidden: int, stages: int, streams: int, draw: Draw):
        self.shape, self.stages, self.streams = shape, stages, streams
        matrices = 2 if shape.gated else 1
        self.up = draw.weight(stages, hidden, matrices, shape.inner, fan=hidden)
        self.down = draw.weight(stages, shape.inner, hidden, fan=shape.inner)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        return {"up": P("dp", None, None, "tp"), "down": P("dp", "tp")}

    def __call__(self, x: jax.Array, part: Part = ALONE) -> jax.Array:
        """Residual streams (T, streams, hidden) through all stages; the last one's chips return the answer."""
        for stage in range(self.stages):
            here = stage if part.dp == 1 else 0  # of the stages whose weights this chip has
            y = feed_forward(jnp.sum(x, axis=1), self.up[here], self.down[here], self.shape.gated, part)
            x = x + y[:, None] / self.streams
            if part.dp > 1 and stage < self.stages - 1:
                with jax.named_scope("hand_off"):
                    x = jax.lax.ppermute(x, "dp", [(stage, stage + 1)])
        return x
