"""The analyses of AOQ (https://arxiv.org/abs/2003.03669), NDGL and TAGS as functions that draw."""
