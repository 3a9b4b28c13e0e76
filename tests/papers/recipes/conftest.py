from recipes_cases import no_figures, own_cache  # noqa: F401 - fixtures of every test here
