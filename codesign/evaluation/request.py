"""What is asked, in one of the four regimes: lengths, targets, drafts, routing and the framework that serves."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from codesign.errors import CodesignError
from codesign.objective.metrics import Framework, Load
from codesign.objective.phases import PHASES, Phase
from codesign.routing_choices import Routing, routing_of

#: Tokens of one answer, for energy per query.
OUTPUT_TOKENS = 1000.0

#: Most of each that is asked for; larger numbers are slips, and no machine would serve them [tokens, sequences].
MOST = {
    "context": 1e9, "cached": 1e9, "new": 1e9, "isl": 1e9, "osl": 1e9, "output": 1e9, "batch": 1e7, "concurrency": 1e9,
}  # fmt: skip

#: Largest exponent of expert popularity that the routing model was fitted to.
MAX_SKEW = 1.5

#: Lengths that a regime needs, and those that it may be given besides.
LENGTHS = {
    "prefill": (("new",), ()),
    "midfill": (("cached", "new"), ()),
    "decode": (("context",), ()),
    "serve": (("isl", "osl"), ("concurrency", "cached")),
}


@dataclass(frozen=True)
class Request:
    """One request; lengths in tokens, targets in seconds.

    Attributes:
        phase: ``prefill`` | ``midfill`` | ``decode`` | ``serve``.
        context: cached tokens per sequence (decode).
        cached, new: of a prompt: what it finds in the cache, and what it brings (prefill, midfill).  In serve
            ``cached`` is the part of ``isl`` that is found in the cache: ``isl - cached`` tokens are new.
        concurrency, isl, osl: requests in flight on the whole mapping, whole prompt and answer of each (serve).
        framework: whose host time is added to every step (serve), as in ``arch/measurements/frameworks.toml``.
        tpot, ttft: targets; the first of decode and serve, the second of prefill and midfill.
        batch: sequences per micro-batch of one instance; searched where not given.
        drafts: drafted tokens per pass. skew: exponent of expert popularity. output: tokens of one answer.
        copies: redundant experts per layer. capacity_factor: most routes of an expert over the mean, None for no limit.
        overflow: what becomes of routes beyond it, ``drop`` | ``reroute``.
        dispatch: a message per ``token`` and rank, or per ``route``.
    """

    phase: str = "decode"
    context: float | None = None
    cached: float | None = None
    new: float | None = None
    concurrency: float | None = None
    isl: float | None = None
    osl: float | None = None
    framework: str | None = None
    tpot: float | None = None
    ttft: float | None = None
    batch: float | None = None
    drafts: float = 0.0
    skew: float = 0.0
    output: float = OUTPUT_TOKENS
    copies: float = 0.0
    capacity_factor: float | None = None
    overflow: str = "drop"
    dispatch: str = "token"

    def __post_init__(self) -> None:
        """Refuse what has no meaning, before anything is loaded.

        Raises:
            CodesignError: unknown phase; a length missing, without meaning in the phase, not a positive number or
                beyond `MOST`; a prompt that is cached whole; an answer of less than two tokens.
        """
        if self.phase not in PHASES:
            raise CodesignError(f"unknown phase {self.phase!r}", key="--phase", allowed=", ".join(PHASES))
        needed, open_to = LENGTHS[self.phase]
        for name in needed:
            if getattr(self, name) is None:
                words = ", ".join(f"--{n}" for n in needed)
                raise CodesignError(f"is missing: {self.phase} needs it", key=f"--{name}", allowed=words)
        foreign = {name for needs in LENGTHS.values() for part in needs for name in part} - {*needed, *open_to}
        foreign |= {"ttft"} if self.phase in ("decode", "serve") else {"tpot"}
        foreign |= set() if self.phase == "serve" else {"framework"}
        for name in sorted(foreign):
            if getattr(self, name) is not None:
                words = ", ".join(f"--{n}" for n in (*needed, *open_to))
                raise CodesignError(f"has no meaning in phase {self.phase!r}", key=f"--{name}", allowed=words)
        if self.phase == "serve" and self.batch is not None and self.concurrency is not None:
            raise CodesignError("says the same as --concurrency", key="--batch", allowed="one of the two")
        for name in ("context", "new", "concurrency", "isl", "osl", "tpot", "ttft", "batch"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0.0):
                raise CodesignError(
                    f"{value!r} is not a positive number", key=f"--{name}", allowed="a finite number above 0"
                )
        if self.cached is not None and not (np.isfinite(self.cached) and self.cached >= 0.0):
            raise CodesignError(f"{self.cached!r} cached tokens", key="--cached", allowed="a finite number, 0 or more")
        for name, most in MOST.items():
            value = getattr(self, name)
            if value is not None and value > most and np.isfinite(value):
                unit = "sequences" if name == "batch" else "requests" if name == "concurrency" else "tokens"
                raise CodesignError(f"{value:g} {unit}", key=f"--{name}", allowed=f"at most {most:,.0f}")
        if self.phase == "serve":
            self._check_answer()
        if not (np.isfinite(self.output) and self.output > 0.0):
            raise CodesignError(
                f"{self.output!r} tokens of an answer", key="--output", allowed="a finite number above 0"
            )
        if not 0.0 <= self.skew <= MAX_SKEW:
            raise CodesignError(
                f"expert popularity of exponent {self.skew!r}", key="--skew", allowed=f"0 to {MAX_SKEW:g}"
            )
        if self.drafts and self.regime.name in ("prefill", "midfill"):
            raise CodesignError(f"{self.drafts:g} drafts of a prompt", key="--drafts", allowed="0")
        _ = self.routing

    def _check_answer(self) -> None:
        """Serving: something of the prompt is new, and the answer has a second token, since TPOT is the time to it."""
        if self.cached is not None and self.isl is not None and self.cached >= self.isl:
            problem = f"{self.cached:,g} cached tokens of a prompt of {self.isl:,g}: none is new"
            raise CodesignError(problem, key="--cached", allowed=f"less than the --isl of {self.isl:,g}")
        if self.osl is not None and self.osl < 2.0:
            problem = f"an answer of {self.osl:g} tokens has no TPOT, the time from its first token to its last"
            raise CodesignError(problem, key="--osl", allowed="2 or more")

    @property
    def routing(self) -> Routing | None:
        """Copies, capacity and dispatch of the experts; None where all are plain."""
        return routing_of(self.copies, self.capacity_factor, self.dispatch, self.overflow)

    @property
    def regime(self) -> Phase:
        """The phase itself."""
        return PHASES[self.phase]

    @property
    def target(self) -> float | None:
        """The time that must be met: TPOT or TTFT [s]."""
        return self.tpot if self.tpot is not None else self.ttft

    @property
    def target_name(self) -> str:
        """``tpot_s`` or ``ttft_s``: which of the metrics the target is about."""
        return "tpot_s" if self.phase in ("decode", "serve") else "ttft_s"

    @property
    def longest(self) -> float:
        """Tokens of a sequence at its end; in serve what is cached is a part of the prompt."""
        cached = None if self.phase == "serve" else self.cached
        lengths = (self.context, cached, self.new, self.isl, self.osl)
        return sum(x for x in lengths if x is not None)

    def load(self, framework: Framework, batch: float = 1.0) -> Load:
        """What is served, for the model."""
        serving = self.phase == "serve"
        return Load(
            batch=batch,
            context=float((self.context if self.phase == "decode" else self.cached) or 0.0),
            drafts=float(self.drafts),
            skew=float(self.skew),
            output=float(self.osl or 0.0) if serving else float(self.output),
            new=float((self.isl or 0.0) - (self.cached or 0.0) if serving else (self.new or 0.0)),
            framework=framework,
            routing=self.routing,
        )

    def batches(self, mappings: Any) -> Any:
        """Sequences per micro-batch where they are given, (n,) or a number; None where they are searched."""
        if self.concurrency is None:
            return self.batch
        return self.concurrency / (np.asarray(mappings.dp) * np.asarray(mappings.microbatches))

    def document(self, load: Load) -> dict[str, Any]:
        """The request as results repeat it."""
        new = 1.0 + float(load.drafts) if self.phase == "decode" else float(load.new)
        found: dict[str, Any] = {
            "context": float(load.context), "new": new, "batch": float(load.batch), "drafts": round(float(load.drafts)),
            "tpot_s": self.tpot, "output": float(load.output), "skew": float(load.skew),
            "copies": float(self.copies), "capacity_factor": self.capacity_factor, "overflow": self.overflow,
            "dispatch": self.dispatch,
        }  # fmt: skip
        if self.phase != "decode":
            found["ttft_s"] = self.ttft
        if self.phase == "serve":
            found |= {
                "concurrency": self.concurrency, "isl": self.isl, "osl": self.osl, "framework": self.framework,
                "step_overhead_s": float(load.framework.step_overhead),
                "sequence_overhead_s": float(load.framework.sequence_overhead),
                "decoding_share": float(load.framework.decoding),
            }  # fmt: skip
        return found
