"""Tables of experiments: what is run, what is kept of each run, and the table made from that."""
