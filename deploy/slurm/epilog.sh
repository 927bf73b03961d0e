#!/bin/bash
# EpilogSlurmctld: diagnose a job when it ends, in the background. It returns at once and always ends with 0, so that it can neither hold
# Slurm up nor, run as an Epilog, drain a node.
#
# DIAGNOSE_PATH    folder with the program; Slurm gives an epilog no PATH         (/opt/diagnose/bin)
# DIAGNOSE_TRACES  folder with a folder of traces for each job, named by its id    (/traces)
# DIAGNOSE_STORE   where results are kept, best PostgreSQL                         (set in /etc/diagnose.env)
# DIAGNOSE_LOG     what the diagnosis prints                                       (/var/log/diagnose-epilog.log)
# DIAGNOSE_WAIT    set to wait for the diagnosis, to try the script by hand
set -u

if [ -r /etc/diagnose.env ]; then
  set -a
  # shellcheck source=/dev/null
  . /etc/diagnose.env
  set +a
fi
export PATH=${DIAGNOSE_PATH:-/opt/diagnose/bin}:${PATH:-/usr/local/bin:/usr/bin:/bin}
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-0}}
job=${job:-${SLURM_JOB_ID:-}}
folder=${DIAGNOSE_TRACES:-/traces}/$job
log=${DIAGNOSE_LOG:-/var/log/diagnose-epilog.log}

case $job in
  "" | *[!A-Za-z0-9_-]*) exit 0 ;; # no job, or no name of one
esac
[ -d "$folder" ] || exit 0 # it recorded nothing

diagnose_job() {
  # 5: some traces are damaged, which is no reason to keep the others back.
  diagnose triage "$folder" --workers 1 --quiet || [ $? -eq 5 ] || return
  diagnose tickets ${DIAGNOSE_SEND:+--send}
}

if [ -n "${DIAGNOSE_WAIT:-}" ]; then
  diagnose_job
else
  diagnose_job >>"$log" 2>&1 </dev/null &
  disown
fi
exit 0
