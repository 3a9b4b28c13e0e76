"""Image-text retrieval models, trained on the negatives that matter."""
