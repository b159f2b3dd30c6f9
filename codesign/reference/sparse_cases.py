"""The executed cases of layers that choose what they attend to: DSA, MSA, compressed attention.

Split by context, the count takes a chip to hold its even share of what is chosen.  The cases see to it that every chip
does: index keys are such that each range has as many of the chosen ones, and a chip makes room for no more.  With
``even=False`` they lie anywhere and every chip has room for all, for the answer's sake and not the count's.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from codesign.layers import compressed, dsa, msa
from codesign.reference.case import (
    BATCH,
    Case,
    answer_alone,
    case_of,
    in_ranges,
    random_numbers,
    step_of,
)
from codesign.reference.compressed import Compressed
from codesign.reference.compressor import Windows
from codesign.reference.dsa import DSA
from codesign.reference.msa import MSA
from codesign.reference.parts import Draw, P, Part

#: Tokens of the context: each of 8 ranges has more of them than are chosen.
CONTEXT = 512


def evenly(chosen: np.ndarray, places: int, ranges: int) -> np.ndarray:
    """For each sequence an order of its ``places`` entries, the last one kept, that has ``chosen`` (batch, k) evenly.

    Every range of ``places / ranges`` entries then holds ``k / ranges`` of the chosen ones.
    """
    size, quota = places // ranges, chosen.shape[1] // ranges
    found = []
    for one in chosen:
        last = np.array([places - 1])
        movable = np.setdiff1d(one, last)
        others = np.setdiff1d(np.arange(places - 1), one)
        order = []
        for r in range(ranges):
            final = r == ranges - 1
            some = quota - (final and len(movable) == quota - 1)
            take, movable = movable[:some], movable[some:]
            rest = size - some - final
            fill, others = others[:rest], others[rest:]
            order += [*fill[: rest // 2], *take, *fill[rest // 2 :]]
        found.append([*order, places - 1])
    return np.array(found)


def dsa_case(
    layer: dsa.DSA, hidden: int, part: Part, new: int = 1, *, context: int = CONTEXT, expanded: bool = False,
    even: bool = True,
) -> Case:  # fmt: skip
    """One token behind a cache, or a few; ``expanded`` is a prompt behind one token, in that form.

    (As for latent attention, `codesign.reference.cases.mla_case`.)
    """
    cached, batch = 1 if expanded else context - new, BATCH * part.dp
    whole = DSA(layer, hidden, Draw(0), cached=cached, expanded=expanded)
    module, seen = whole, cached + new
    x = random_numbers(1, batch, new, hidden)
    latents = random_numbers(2, batch, cached, layer.kv_rank + layer.rope)
    if layer.shared_index:
        # Every 7th token and those beside it: as many in each range.
        one = (np.arange(layer.top_k) * (seen // layer.top_k) + 7) % (cached + 1)
        beside = np.tile(one, (batch, new, 1)).astype(np.int32)
    else:
        beside = np.asarray(random_numbers(3, batch, cached, layer.index_width))
    turned = beside
    if part.context:
        module = DSA(layer, hidden, Draw(0), cached=cached, room=layer.top_k // part.tp if even else None)
        if layer.shared_index:
            size = context // part.tp
            turned = (beside + (np.arange(batch) % BATCH + 1)[:, None, None] * size) % context
        else:
            if even:
                choice = np.asarray(answer_alone(whole, x, (latents, jnp.asarray(beside)))[1][2])[:, 0]
                beside = np.take_along_axis(beside, evenly(choice, seen, part.tp)[:, :-1, None], axis=1)
            turned = in_ranges(jnp.asarray(beside), 1, new, part)
        given = in_ranges(latents, 1, new, part), jnp.asarray(turned)
    else:
        given = latents, jnp.asarray(beside)
    step = step_of(part, batch=BATCH, new=new, cached=cached, block=new > 1, form=int(expanded))
    return case_of(
        module, layer, hidden, part, step, (x, given), (P("dp"), module.kept_specs(part)), whole=whole,
        state_specs=module.returned_specs(part), alone=(x, (latents, jnp.asarray(beside))),
    )  # fmt: skip


def _index_keys(queries: np.ndarray, layer: msa.MSA, keys: np.ndarray, ranges: int) -> np.ndarray:
    """Index keys by which every index head chooses other blocks, as many in each range.

    Args:
        queries: of the new token, (batch, heads, width); its own block is chosen anyway.
        layer: the structure.
        keys: (batch, cached tokens, width), overwritten in one place of each block that is to be chosen.
        ranges: chips.
    """
    keys, quota = keys.copy(), layer.top_blocks // ranges
    blocks = (keys.shape[1] + 1) // layer.block // ranges
    wanted = 64.0 * np.linalg.pinv(queries)  # (batch, width, heads): of score 64 for one head, 0 for the others
    for r in range(ranges):
        for head in range(layer.index_heads):
            for n in range(quota - (r == ranges - 1)):
                block = r * blocks + (r + head * quota + n) % (blocks - 1)
                keys[:, block * layer.block + n % layer.block] = (1.0 + n / 64.0) * wanted[:, :, head]
    return keys


def msa_case(layer: msa.MSA, hidden: int, part: Part, new: int = 1, *, even: bool = True) -> Case:
    """One token that ends a block, or the tokens of the last block."""
    cached, batch = CONTEXT - new, BATCH * part.dp
    whole = module = MSA(layer, hidden, Draw(0), cached=cached)
    x = random_numbers(1, batch, new, hidden)
    widths = (layer.key_width, layer.value_width)
    cache = tuple(random_numbers(2 + i, batch, layer.kv_heads, cached, width) for i, width in enumerate(widths))
    keys = random_numbers(4, batch, cached, layer.index_width)
    if part.context:
        module = MSA(layer, hidden, Draw(0), cached=cached, room=layer.top_blocks // part.tp if even else None)
        if even:
            queries = np.asarray(answer_alone(whole, x, method="indexed")[0])[:, :, 0]
            keys = jnp.asarray(_index_keys(queries, layer, np.asarray(keys), part.tp))
        given = *(in_ranges(c, 2, new, part) for c in cache), in_ranges(keys, 1, new, part)
    else:
        given = *(jnp.repeat(c, module.copies(part), axis=1) for c in cache), keys
    specs = module.kept_specs(part)
    step = step_of(part, batch=BATCH, new=new, cached=cached, block=new > 1)
    return case_of(
        module, layer, hidden, part, step, (x, given), (P("dp"), specs), whole=whole, state_specs=specs,
        alone=(x, (*cache, keys)),
    )  # fmt: skip


def compressed_case(layer: compressed.Compressed, hidden: int, part: Part) -> Case:
    """One token behind a full window, which finishes an entry where the layer compresses."""
    cached, batch = CONTEXT - 1, BATCH * part.dp
    whole = module = Compressed(layer, hidden, Draw(0), cached=cached)
    x = random_numbers(1, batch, 1, hidden)
    kept: dict[str, Any] = {"window": random_numbers(2, batch, layer.window - 1, layer.width)}
    widths = {"": layer.width} if layer.ratio else {}
    if layer.index_heads:
        widths["index_"] = layer.index_width
    for i, (prefix, width) in enumerate(widths.items()):
        kept[prefix.rstrip("_") or "entries"] = random_numbers(3 + i, batch, cached // layer.ratio, width)
        kept[f"{prefix}windows"] = Windows(
            random_numbers(5 + i, batch, layer.ratio - 1, 2, width * (2 if layer.overlap else 1)),
            random_numbers(7 + i, batch, layer.ratio if layer.overlap else 0, 2, width),
        )
    given = kept
    if part.context:
        if layer.index_heads:
            module = Compressed(layer, hidden, Draw(0), cached=cached, room=layer.top_k // part.tp)
            choice = np.asarray(answer_alone(whole, x, kept, method="chosen")[0])
            order = evenly(choice, CONTEXT // layer.ratio, part.tp)[:, :-1]
            kept["index"] = jnp.asarray(np.take_along_axis(np.asarray(kept["index"]), order[..., None], axis=1))
        ranged = {name for name in ("window", "entries", "index") if name in kept}
        given = {name: in_ranges(one, 1, 1, part) if name in ranged else one for name, one in kept.items()}
    specs = module.kept_specs(part)
    step = step_of(part, batch=BATCH, new=1, cached=cached)
    return case_of(
        module, layer, hidden, part, step, (x, given), (P("dp"), specs), whole=whole, state_specs=specs,
        alone=(x, kept),
    )  # fmt: skip
