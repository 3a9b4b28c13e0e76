"""The stages of recipes: one file per kind."""
