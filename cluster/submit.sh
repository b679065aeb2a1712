#!/usr/bin/env bash
# `ray submit` that reports if the cluster runs the sources of this machine: `ray submit` itself copies sweep.py alone.
#
#   bash cluster/submit.sh cluster/onprem.yaml --method framefusion_moe --stream msrvtt-10
#
# After an edit, `ray up` copies the sources again; without it the head refuses the sweep with an error. The sweep
# survives the end of this connection: `ray exec YAML 'ctvr runs attach'` shows it again.
set -euo pipefail
[ $# -ge 1 ] && [ -f "$1" ] || {
  echo "submit.sh: pass the cluster's YAML file first, then the arguments of \`ctvr sweep\`." >&2
  exit 2
}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
words=() # Ray joins them with spaces, and a shell on the head reads them again
for word in --expect-sources "$(python3 "$here/orchestrator/digests.py")" "${@:2}"; do words+=("$(printf %q "$word")"); done
exec ray submit "$1" "$here/orchestrator/sweep.py" -- "${words[@]}"
