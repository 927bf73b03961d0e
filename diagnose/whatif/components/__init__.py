"""The components that time is lost to, one a file; the list of their names, and the order, is `COMPONENTS` of `model`."""
