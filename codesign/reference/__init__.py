"""Executable layers: what the counts of `codesign.layers` are held against, run and compiled.

Each kind of layer is a Flax NNX module in a file of its own that takes the same frozen dataclass as the count does.
One module runs on one device or, inside `jax.shard_map`, as one chip's part of it with real collectives: what it does
follows from the shapes of its weights and from a `codesign.reference.parts.Part`.  Operations carry the names of the
analytic rows as JAX name scopes, by which `codesign.reference.programs` reads their matmul FLOP and collective bytes
out of the compiled program.
"""
