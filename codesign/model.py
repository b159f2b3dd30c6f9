"""A model as the program sees it: which blocks there are, in which order, and what they add up to.

A *block* is a distinct layer kind with its dimensions (say ``mla`` or ``moe``); a *layer* is a sequence of blocks, a
*layer group* a run of layers that a pipeline would rather not cut.  The structure is static under JAX: every count here
is a whole number known when a program is traced, which lets one compilation serve every machine and mapping.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from codesign.errors import CodesignError
from codesign.lanes import Number
from codesign.layers.base import Indexed, Layer, Weights
from codesign.layers.compressed import Compressed
from codesign.layers.dsa import DSA
from codesign.layers.gdn import GDN
from codesign.layers.gqa import GQA
from codesign.layers.kda import KDA
from codesign.layers.lightning import Lightning
from codesign.layers.mamba2 import Mamba2
from codesign.layers.mla import MLA
from codesign.layers.mlp import MLP
from codesign.layers.moe import MoE
from codesign.layers.msa import MSA
from codesign.precision import WEIGHT_CLASSES, bytes_of, with_cache

if TYPE_CHECKING:
    from codesign.catalog.workloads import ModelFile

#: Layer kinds by the name that a model file gives them; a new kind adds one line.
LAYER_KINDS: dict[str, type] = {
    "gqa": GQA, "mla": MLA, "kda": KDA, "mlp": MLP, "moe": MoE, "gdn": GDN, "lightning": Lightning, "mamba2": Mamba2,
    "dsa": DSA, "msa": MSA, "compressed": Compressed,
}  # fmt: skip

#: Distinct stage compositions of a pipeline; shorter lists are padded to it.
MAX_COMPOSITIONS = 6

#: Of these, the most that can be the fullest stage; every bundled model needs at most four at any depth up to 16.
WIDEST = 4


@dataclass(frozen=True)
class Drafts:
    """A drafter beside the model.

    Attributes:
        accepted_length: accepted tokens per pass, the model's own included, with 1, 2, ... drafts; never falling.
        parameters: what a chip keeps beyond the model; embedding and head are shared with it.
        active_parameters: what one token multiplies by; less than ``parameters`` where the drafter has routed experts.
        layers: decoder layers of one drafting pass.
        method: ``chain`` runs the drafter once per draft, ``block`` once for all of them.
    """

    accepted_length: tuple[float, ...]
    parameters: float
    active_parameters: float
    layers: int
    method: str = "chain"

    def passes(self, drafts: Number) -> Number:
        """Drafting passes for ``drafts`` drafted tokens: as many, or one for a block of them."""
        return jnp.minimum(drafts, 1.0) if self.method == "block" else drafts


class Counts(NamedTuple):
    """What a model weighs and keeps; parameters are counted once, bytes in the dtypes asked for.

    Attributes:
        total_parameters: all of the backbone, embedding and head; no multi-token prediction module, no vision tower.
        active_parameters: what one token multiplies by: without the input embedding, with the head.
        routed_parameters, routed_active: of these, in routed experts.
        parameters: by weight class, embedding and head included.
        weight_bytes: of all parameters [B].
        kv_bytes_per_token: cache that grows with context, index keys included [B].
        window_bytes_per_sequence: caches of full sliding windows [B].
        state_bytes_per_sequence: recurrent and convolution states [B].
    """

    total_parameters: float
    active_parameters: float
    routed_parameters: float
    routed_active: float
    parameters: dict[str, float]
    weight_bytes: float
    kv_bytes_per_token: float
    window_bytes_per_sequence: float
    state_bytes_per_sequence: float


@dataclass(frozen=True)
class Model:
    """Structure of a model: static and hashable.

    Attributes:
        name: its name in the catalog.
        hidden: width of the residual stream h.
        vocab: words of the embedding and of the head.
        tied: the head is the embedding's transpose and is stored once.
        blocks: pairs (name, layer kind with its dimensions).
        layers: layer groups, each a tuple of layers, each a tuple of indices into ``blocks``.
        dtypes: pairs (tensor class, dtype name) of the published checkpoint.
        published_kv: dtype of the cache as published, for display.
        drafts: the drafter, if there is one.
        streams: residual streams, more than one under hyper-connections.
        residual_run: layers whose outputs attention residuals sum up to one source, 0 for plain residuals.
    """

    name: str
    hidden: int
    vocab: int
    tied: bool
    blocks: tuple[tuple[str, Layer], ...]
    layers: tuple[tuple[tuple[int, ...], ...], ...]
    dtypes: tuple[tuple[str, str], ...]
    published_kv: str = "bf16"
    drafts: Drafts | None = None
    streams: int = 1
    residual_run: int = 0

    @property
    def residual_sources(self) -> float:
        """Completed sources of attention residuals before a layer, in the mean over the stack; the embedding is one."""
        return float(np.mean(1 + np.arange(self.depth) // self.residual_run)) if self.residual_run else 0.0

    @property
    def handed(self) -> float:
        """Vectors of the residual's width that a token takes from one stage to the next, in the mean over the stack.

        Under attention residuals later stages read all completed sources and the sum at hand.
        """
        return self.residual_sources + 1.0 if self.residual_run else float(self.streams)

    @property
    def depth(self) -> int:
        """Layers of the stack."""
        return sum(len(group) for group in self.layers)

    def block_counts(self) -> tuple[int, ...]:
        """How often the stack runs each block."""
        return _tally(self, [layer for group in self.layers for layer in group])

    def ends(self) -> tuple[Weights, ...]:
        """Input embedding, output head and final norm.

        A tied head is stored with the embedding but multiplied by all the same.
        """
        table = float(self.vocab * self.hidden)
        return (
            Weights("embedding", table, 0.0),
            Weights("head", 0.0 if self.tied else table, table),
            Weights("head", self.hidden, self.hidden, "copy"),
        )

    def counts(self, dtypes: Mapping[str, str] | None = None) -> Counts:
        r"""Parameters and bytes of the whole model.

        .. math:: N = \sum_b n_b N_b + N_{embedding} + N_{head}, \qquad M = \sum_{class} N_{class}\, b_{class}

        Args:
            dtypes: dtype names by tensor class that replace the model's own; index keys go along with ``kv`` where
                the model stores both alike.

        Raises:
            CodesignError: a dtype has no known size.
        """
        given = dict(dtypes or {})
        names = (with_cache(dict(self.dtypes), given["kv"]) if "kv" in given else dict(self.dtypes)) | given
        size = {name: bytes_of(dtype) for name, dtype in names.items()}
        held: defaultdict[str, float] = defaultdict(float)
        used: defaultdict[str, float] = defaultdict(float)
        cache = index = window = recurrent = conv = 0.0
        for w in self.ends():
            held[w.kind] += w.count
            used[w.kind] += w.active
        for n, (_, layer) in zip(self.block_counts(), self.blocks, strict=True):
            for w in layer.weights(self.hidden):
                held[w.kind] += n * w.count
                used[w.kind] += n * w.active
            state = layer.state_elements()
            cache += n * layer.cache_elements()
            index += n * layer.index_elements() if isinstance(layer, Indexed) else 0.0
            window += n * layer.window_elements()
            recurrent += n * state[0]
            conv += n * state[1]
        return Counts(
            total_parameters=sum(held.values()),
            active_parameters=sum(used.values()),
            routed_parameters=held["routed"],
            routed_active=used["routed"],
            parameters={kind: held[kind] for kind in WEIGHT_CLASSES},
            weight_bytes=sum(count * size[kind] for kind, count in held.items() if count),
            kv_bytes_per_token=cache * size["kv"] + index * size["index"],
            window_bytes_per_sequence=window * size["kv"],
            state_bytes_per_sequence=recurrent * size["state"] + conv * size["conv_state"],
        )


class Stages(NamedTuple):
    """A layer stack cut into pipeline stages.

    Attributes:
        table: distinct compositions, (`MAX_COMPOSITIONS`, blocks + 1): how often each block runs, then 1 where the
            stage carries the head.  Row 0 is the first stage, which also keeps the input embedding; rows past the last
            distinct one repeat it.
        multiplicity: stages of each composition, (`MAX_COMPOSITIONS`,); 0 for repeated rows, so that
            ``multiplicity @ table`` counts every block of the model once.
        depths: layers of each stage, in order.
    """

    table: np.ndarray
    multiplicity: np.ndarray
    depths: tuple[int, ...]


def _tally(model: Model, layers: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """How often a run of layers has each block."""
    found = [0] * len(model.blocks)
    for layer in layers:
        for block in layer:
            found[block] += 1
    return tuple(found)


def split(weights: Sequence[int], parts: int) -> tuple[int, ...]:
    """Cut a row of positive weights into contiguous parts, as even as they can be, the smaller shares last.

    First the heaviest part is as light as possible (bisection over its weight), then the sum of squares is as small
    (dynamic programme over prefixes under that limit), then on ties later parts are no heavier than need be.

    Args:
        weights: one positive whole number per piece.
        parts: at most as many as there are pieces.

    Returns:
        Number of pieces in each part, at least one.
    """
    ends, n = (0, *accumulate(weights)), len(weights)

    def fits(limit: int) -> bool:
        """Whether greedy packing under ``limit`` needs no more than ``parts``."""
        used, start = 1, 0
        for before, end in pairwise(ends):
            if end - start > limit:
                used, start = used + 1, before
        return used <= parts

    limit = bisect_left(range(ends[-1] + 1), True, lo=max(weights), key=fits)
    best: list[float] = [0.0, *[inf] * n]
    cuts: list[list[int]] = []
    for _ in range(parts):
        new, cut = [inf] * (n + 1), [0] * (n + 1)
        for i in range(1, n + 1):
            for j in reversed(range(i)):
                here = ends[i] - ends[j]
                if here > limit:
                    break
                if best[j] + here * here < new[i]:
                    new[i], cut[i] = best[j] + here * here, j
        best = new
        cuts.append(cut)
    bounds = [n]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]])
    return tuple(b - a for a, b in pairwise(reversed(bounds)))


@lru_cache(maxsize=1024)
def stages(model: Model, pp: int) -> Stages:
    """Cut the layer stack into ``pp`` contiguous stages, as even as possible in layers.

    Cuts fall between layer groups where there are at least ``pp`` groups, else between layers.

    Raises:
        CodesignError: more stages than layers, or more distinct stages than a mapping can carry.
    """
    if not 1 <= pp <= model.depth:
        raise CodesignError(f"{model.name} cannot be cut into {pp} stages", key="pp", allowed=f"1 to {model.depth}")
    pieces = model.layers if len(model.layers) >= pp else tuple((layer,) for g in model.layers for layer in g)
    bounds = (0, *accumulate(split([len(piece) for piece in pieces], pp)))
    runs = [[layer for piece in pieces[a:b] for layer in piece] for a, b in pairwise(bounds)]
    found: dict[tuple[int, ...], int] = {}
    for i, run in enumerate(runs):
        row = (*_tally(model, run), int(i == pp - 1))
        found[row] = found.get(row, 0) + 1
    if len(found) > MAX_COMPOSITIONS:
        raise CodesignError(
            f"{pp} stages of {model.name} have {len(found)} different compositions",
            key="pp",
            allowed=f"depths with at most {MAX_COMPOSITIONS}",
        )
    spare = MAX_COMPOSITIONS - len(found)
    rows = list(found)
    table = np.array(rows + [rows[-1]] * spare, dtype=float)
    multiplicity = np.array([*found.values(), *[0] * spare], dtype=float)
    table.flags.writeable = multiplicity.flags.writeable = False
    return Stages(table, multiplicity, tuple(len(run) for run in runs))


def _covers(other: np.ndarray, row: np.ndarray, first: bool) -> bool:
    """Whether a stage costs at least what another does, whatever its blocks cost; of two alike, the first."""
    return bool(np.all(other >= row) and (first or np.any(other > row)))


@lru_cache(maxsize=1024)
def stage_table(model: Model, pp: int) -> np.ndarray:
    """The stages of `stages` that can be the fullest, (`WIDEST`, blocks + 1).

    A stage that runs no block more often than another never is: it is left out.  Row 0 is always the first stage, which
    also keeps the input embedding; spare rows repeat it.
    """
    found = stages(model, pp)
    rows = list(found.table[found.multiplicity > 0])
    kept = [
        row
        for i, row in enumerate(rows)
        if i == 0 or not any(j != i and _covers(other, row, j < i) for j, other in enumerate(rows))
    ]
    if len(kept) > WIDEST:
        raise CodesignError(
            f"{pp} stages of {model.name} have {len(kept)} compositions that could be the fullest",
            key="pp",
            allowed=f"depths with at most {WIDEST}",
        )
    table = np.array(kept + [kept[0]] * (WIDEST - len(kept)))
    table.flags.writeable = False
    return table


def model_of(file: "ModelFile") -> Model:
    """Build the structure from a model file, which its schema has already found to be consistent.

    Accepted lengths are made never to fall (each entry is a run of its own): a shorter draft is always open.
    """
    blocks = tuple((name, LAYER_KINDS[block.kind](**block.structure)) for name, block in file.blocks.items())
    index = {name: i for i, (name, _) in enumerate(blocks)}
    groups: list[tuple[tuple[int, ...], ...]] = []
    for run in file.layers:
        groups += [tuple(tuple(index[name] for name in layer) for layer in run.group)] * run.repeat
    drafts, given = None, file.drafts
    if given is not None:
        drafts = Drafts(
            accepted_length=tuple(accumulate(given.accepted_length.si_list, max)),
            parameters=given.parameters.si,
            active_parameters=(given.active_parameters or given.parameters).si,
            layers=given.layers,
            method=given.method,
        )
    return Model(
        name=file.name,
        hidden=file.hidden,
        vocab=file.vocab,
        tied=file.tied_embeddings,
        blocks=blocks,
        layers=tuple(groups),
        dtypes=tuple(file.dtypes.names.items()),
        published_kv=file.dtypes.published_kv,
        drafts=drafts,
        streams=file.residual_streams,
        residual_run=file.residual_run,
    )
