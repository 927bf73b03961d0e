"""Which colours verdicts and severities have on a terminal."""

VERDICT_STYLES = {
    "healthy": "bold green",
    "noisy": "bold cyan",
    "straggling": "bold red",
    "inconclusive": "bold yellow",
}
SEVERITY_STYLES = {"critical": "bold red", "high": "bold red", "medium": "bold yellow"}
