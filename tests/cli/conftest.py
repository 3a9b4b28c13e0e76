from cli_fixture_cases import analysed, models, printed  # noqa: F401 - of tests here
