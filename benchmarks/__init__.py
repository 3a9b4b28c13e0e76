"""Measurements that are not part of the package: speed, and the tables of experiments.

* ``python -m benchmarks`` measures what the fast parts cost (`benchmarks.speed`).
* ``python -m benchmarks.experiments`` trains and compares (`benchmarks.experiments`).
"""
