"""Which negatives will help, said before training: tried, and held against the ledgers."""
