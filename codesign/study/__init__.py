"""Studies: what is asked in ``optimize/``, answered problem by problem into a run folder that survives being killed."""
