"""JAX as the program uses it: float64 on the CPU, with a compilation cache in the user's cache folder."""

import os
from importlib import metadata
from pathlib import Path

_PREPARED = False

#: XLA's older code generator compiles these programs in half the time and runs them a tenth slower; jaxlib 0.11 dropped
#: the switch, and refuses to start where it meets it.
_QUICK = "--xla_cpu_use_fusion_emitters=false"


def cache_folder() -> Path:
    """Where compiled programs go: ``$CODESIGN_CACHE``, else ``codesign`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    chosen = os.environ.get("CODESIGN_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "codesign"


def prepare(*, quick_to_compile: bool = True) -> None:
    """Turn on float64 and the compilation cache; harmless when called again.

    Args:
        quick_to_compile: prefer a short compilation to the last tenth of speed; only the first call decides.

    ``CODESIGN_CACHE=off`` leaves the cache out; a folder that cannot be written is left out without a word, since
    only the second start is slower for it.
    """
    global _PREPARED
    if _PREPARED:
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = os.environ.get("XLA_FLAGS", "")
    if quick_to_compile and metadata.version("jaxlib").startswith("0.10.") and "xla_cpu_use_fusion" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_QUICK}".strip()
    import jax

    jax.config.update("jax_enable_x64", True)
    if os.environ.get("CODESIGN_CACHE") != "off":
        folder = cache_folder() / "jax"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass
        else:
            jax.config.update("jax_compilation_cache_dir", str(folder))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    _PREPARED = True
