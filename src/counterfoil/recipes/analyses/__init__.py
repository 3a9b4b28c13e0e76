"""The analyses of AOQ (https://arxiv.org/abs/2003.03669) and NDGL as functions that draw."""
