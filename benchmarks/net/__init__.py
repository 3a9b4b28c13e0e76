"""The safety net of a refactoring: what an old commit computes, and what the working tree does.

``python -m benchmarks.net COMMIT`` runs `benchmarks.net.cases` on both and compares the results.
"""
