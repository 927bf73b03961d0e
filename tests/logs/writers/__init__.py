"""Writers of logs, one a format, each after the public source of what prints it."""
