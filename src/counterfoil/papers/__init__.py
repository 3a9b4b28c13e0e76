"""The laboratory: systems, recipes, figures and readers of the three papers and of those compared.

It uses the library as any other package would; nothing in the library imports it.
"""
