"""NDGL (Zhou et al., AAAI 2025): systems, recipes, figures and tables."""
