"""Files of the papers' data: precomputed features, UNITER's databases."""
