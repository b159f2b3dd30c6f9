"""The search for the best machine: space, ascent, finish, rounding."""
