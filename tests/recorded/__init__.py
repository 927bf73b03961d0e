"""Real training jobs with real faults, recorded for this project, and how right the answers on them are."""
