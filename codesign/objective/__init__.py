"""From timed work to what is asked: TPOT, tokens per second, tokens per megawatt, and the batch that meets a target."""
