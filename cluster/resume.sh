#!/usr/bin/env bash
# `ctvr sweep` that resumes a sweep of its name if one exists: for systems that repeat the same command by themselves.
#
#   resume.sh NAME WORDS ...      CTVR_RUNS is the folder of the sweeps
#
# Kubernetes repeats a failed job on a new cluster, and a refused setting (status 2) would be refused again. With
# CTVR_REFUSED_STATUS=0 such a sweep ends as succeeded.
set -euo pipefail
[ $# -ge 1 ] || {
  echo "resume.sh: pass the sweep's name first, then the arguments of \`ctvr sweep\`." >&2
  exit 2
}
where=() # a resumed sweep keeps its settings, but may run on other resources
name=$1
shift
if [ -f "${CTVR_RUNS:-runs}/sweeps/$name/plan.json" ]; then
  while [ $# -gt 0 ]; do
    case $1 in
      --address | --nodes | --max-nodes | --max-concurrent | --budget-hours | --store | --storage | --videos)
        where+=("$1" "${2:-}")
        shift
        ;;
      --address=* | --nodes=* | --max-nodes=* | --max-concurrent=* | --budget-hours=* | --store=* | --storage=* | --videos=*)
        where+=("$1")
        ;;
    esac
    shift
  done
  set -- --resume "$name" ${where[@]+"${where[@]}"}
else
  set -- --name "$name" "$@"
fi
[ "${CTVR_REFUSED_STATUS:-2}" != 2 ] || exec ctvr sweep "$@"
status=0
ctvr sweep "$@" || status=$?
if [ "$status" -eq 2 ]; then
  echo "resume.sh: the sweep was refused with the error above. This job ends with status $CTVR_REFUSED_STATUS, so that it is not repeated." >&2
  status=$CTVR_REFUSED_STATUS
fi
exit "$status"
