"""Programs that derive numbers kept in the package; none is needed at run time."""
