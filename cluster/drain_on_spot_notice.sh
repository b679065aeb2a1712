#!/usr/bin/env bash
# On an AWS spot machine: waits for the termination notice, which comes two minutes before, and has Ray drain the node.
#
#   drain_on_spot_notice.sh      `setup.sh again` starts it; on any other machine it exits at once
#
# A draining node gets no new trials, and trials that die with it count as a lost machine, not as their own failure.
# CTVR_METADATA is the address of the machine's metadata service, CTVR_SPOT_SECONDS the interval of the queries.
set -uo pipefail

METADATA=${CTVR_METADATA:-http://169.254.169.254}
DEADLINE=110 # remaining seconds that are reported to Ray
TOKEN=

ask() { # $1: a path below meta-data; fails if it does not exist. Tokens last for hours, so one is kept
  [ -n "$TOKEN" ] || TOKEN=$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 21600' "$METADATA/latest/api/token") ||
    return
  curl -sf -m 5 -H "X-aws-ec2-metadata-token: $TOKEN" "$METADATA/latest/meta-data/$1"
}

[ "$(ask instance-life-cycle)" = spot ] || exit 0
until NOTICE=$(ask spot/instance-action); do
  case $? in 22) TOKEN= ;; esac # no notice, or a token that is too old
  sleep "${CTVR_SPOT_SECONDS:-5}"
done
echo "drain_on_spot_notice.sh: AWS takes this machine away: $NOTICE"
for _ in 1 2 3 4 5; do
  ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "spot notice" \
    --deadline-remaining-seconds "$DEADLINE" && exit
  sleep 2
done
exit 1
