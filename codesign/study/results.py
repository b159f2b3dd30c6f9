"""``results.parquet``: one flat row per design, rounded design and existing machine of every problem."""

import io
from pathlib import Path
from typing import Any

from codesign.files import write_bytes


def rows(problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Flat rows; absent metrics are null. Columns are the keys of ``metrics``, ``mapping`` and ``variables``."""
    found = []
    for p in problems:
        head = {k: p[k] for k in ("id", "context", "precision", "target_s")}
        for d in p["designs"]:
            found.append(head | {"what": "design", "name": d["technology"]} | _flat(d))
            if d.get("rounded"):
                found.append(
                    head | {"what": "rounded", "name": d["technology"]} | _flat(d["rounded"] | {"feasible": True})
                )
        found += [head | {"what": "machine", "name": m["arch"]} | _flat(m) for m in p["machines"]]
    return found


def _flat(d: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {
        "feasible": bool(d["feasible"]), "limited_by": d.get("limited_by"), "loss": d.get("loss"),
        "kkt_residual": d.get("kkt_residual"), "batch": (d.get("request") or {}).get("batch"),
    }  # fmt: skip
    for part in ("mapping", "variables", "metrics"):
        flat |= {k: v for k, v in (d.get(part) or {}).items() if k != "chunk"}
    return flat


def write_results(path: Path, problems: list[dict[str, Any]]) -> None:
    """Write the rows as Parquet, whole or not at all."""
    import polars as pl

    table = rows(problems)
    columns = list(dict.fromkeys(k for row in table for k in row))
    frame = pl.DataFrame({c: [row.get(c) for row in table] for c in columns}, strict=False)
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", statistics=False)
    write_bytes(path, buffer.getvalue())
