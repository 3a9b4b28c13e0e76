"""Recipes on data: what runs them, and what searches their settings."""
