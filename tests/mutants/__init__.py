"""Do the tests notice? Mutants of the core are made, and the tests that run the changed line are run on each."""
