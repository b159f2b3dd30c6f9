"""Runs one part of ``codesign verify`` in a process of its own; see `codesign.reference.processes`.

Takes one JSON document as its argument and writes one, the answer or an error, as the last line of stdout.
"""

import json
import sys
from typing import Any


def answer(request: dict[str, Any]) -> Any:
    """Do what is asked for."""
    from codesign.runtime import prepare

    if request["task"] == "counts":
        prepare()
        from codesign.reference.verify import verify

        return verify(request["model"], request.get("workspace"))
    if request["task"] == "measure":
        import jax

        jax.config.update("jax_enable_x64", True)
        from codesign.reference.device import measure

        return measure(request.get("small", False))
    raise ValueError(request["task"])


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(answer(json.loads(sys.argv[1]))) + "\n")
