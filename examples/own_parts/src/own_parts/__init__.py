"""Parts of one's own for counterfoil; the entry points in pyproject.toml make them known."""
