"""Tables of experiments: recipes of several models and seeds, their ledgers, and the summary."""
