"""A Hugging Face ``config.json`` becomes a model file of the catalog.

`config` reads a configuration and tells what it lacks, `grouped`, `latent` and `hybrid` know the architectures,
`quantization` turns what a checkpoint says of its weights into one dtype per tensor class, `text` writes the file.
Nothing that decides a count is guessed: a field that an architecture needs and a configuration lacks is an error that
names it, and what an architecture itself defines is told in the notes.
"""

from codesign.catalog.importing.build import ARCHITECTURES, Imported, import_model

__all__ = ["ARCHITECTURES", "Imported", "import_model"]
