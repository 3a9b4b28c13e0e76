"""The one training step and the loop around it."""
