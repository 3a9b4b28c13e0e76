"""One recipe at many settings: which, run with what they share run once, the best one on dev."""
