"""AOQ (Chen et al., ECCV 2020): recipes, figures and tables."""
