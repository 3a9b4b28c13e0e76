"""Pre-training of joint encoders."""
