"""Pages, figures and tables. Nothing here knows of models, runs or data sets."""
