"""The analyses of AOQ (https://arxiv.org/abs/2003.03669) as functions that print and draw."""
