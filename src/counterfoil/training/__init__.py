"""The trainer, its step, optimizers, checkpoints and logs."""
