"""Starts the processes in which layers run: how many devices JAX has is settled before it starts."""

import json
import os
import subprocess
import sys
from typing import Any

#: Devices over which the executed layers are split.
DEVICES = 8

#: Seconds after which a process is taken to hang; the longest takes about 40.
PATIENCE = 600


def environment(devices: int | None) -> dict[str, str]:
    """The environment of a process with so many host devices, or with the device at hand for None."""
    env = dict(os.environ)
    if devices is not None:
        flags = [f for f in env.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in f]
        flags += [f"--xla_force_host_platform_device_count={devices}", "--xla_cpu_multi_thread_eigen=false"]
        env["XLA_FLAGS"] = " ".join(flags)
        # A collective blocks the thread that it runs on: with fewer threads than devices they would wait for ever.
        env["NPROC"] = str(2 * devices)
        env["JAX_PLATFORMS"] = "cpu"
    return env


def ask(request: dict[str, Any], devices: int | None = DEVICES) -> Any:
    """Have a request answered by `codesign.reference.__main__` in a fresh process.

    Raises:
        RuntimeError: the process failed, with the last line that it wrote, or did not end within `PATIENCE`.
    """
    command = [sys.executable, "-m", "codesign.reference", json.dumps(request)]
    try:
        done = subprocess.run(
            command, env=environment(devices), capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the layers did not come to an end within {PATIENCE} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the layers could not be run: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])
