"""Every night: diagnose all jobs, tell of what is new, write the site."""

import datetime as dt

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "diagnose",
    schedule="0 2 * * *",
    start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
):
    # Exit code 5: some traces are damaged.
    triage = BashOperator(task_id="triage", bash_command="diagnose triage /traces --quiet || [ $? -eq 5 ]")
    tickets = BashOperator(task_id="tickets", bash_command="diagnose tickets --send", retries=3)
    fleet = BashOperator(task_id="fleet", bash_command="diagnose fleet --site /srv/diagnose")
    triage >> tickets >> fleet
