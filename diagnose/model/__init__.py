"""The data types that flow from the file to the report: frozen dataclasses, shape and unit beside each field."""
