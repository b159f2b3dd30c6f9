"""Kinds of layer: each file holds the structure, the counts and the work of one kind."""
