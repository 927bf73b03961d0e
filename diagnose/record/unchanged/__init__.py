"""Recording a job whose script is not changed: the folder that `diagnose run` puts on the `PYTHONPATH` of its processes."""
