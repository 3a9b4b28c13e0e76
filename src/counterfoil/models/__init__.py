"""Image-text models, one file per paper."""
