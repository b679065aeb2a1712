#!/usr/bin/env bash
# `ctvr sweep` that resumes a sweep of its name if one exists: for systems that repeat the same command by themselves.
#
#   resume.sh NAME WORDS ...      CTVR_RUNS is the folder of the sweeps
set -euo pipefail
[ $# -ge 1 ] || {
  echo "resume.sh: write the sweep's name first, then the arguments of \`ctvr sweep\`." >&2
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
  exec ctvr sweep --resume "$name" ${where[@]+"${where[@]}"}
fi
exec ctvr sweep --name "$name" "$@"
