"""One request answered: the best mapping found and named, its metrics, and its rows as a table."""
