#!/usr/bin/env bash
# MLflow on the head node, for every node of the cluster and nobody else.
#
#   services.sh start      start it unless it answers, and tell every later shell its address
#   services.sh stop
#   services.sh backup     copy its database to the shared folder
#
# Its pages, from one's own machine: ssh -L 5000:ADDRESS:5000 USER@HEAD (`start` prints ADDRESS), then
# http://localhost:5000; name and password stand in ~/.ctvr/mlflow_credentials.
#
# It listens on the head's own address (not on every interface), answers to that host name only, and wants the
# password of ~/.mlflow/credentials. The database lies on the head's disk, since SQLite breaks on NFS; artifacts go
# to CTVR_ARTIFACTS (a folder or s3://BUCKET/PREFIX), by default into the shared folder CTVR_RUNS. MLflow's own jobs
# stay off: nobody needs them here, and their seven processes took 1.8 GB.
set -euo pipefail

own_address() { # of the default route, as Ray finds it; connecting a datagram socket sends nothing
  python3 -c "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('192.0.2.1', 9)); \
print(s.getsockname()[0])"
}

[ ! -f "$HOME/.ctvr_env" ] || . "$HOME/.ctvr_env"
FOLDER=${CTVR_MLFLOW:-$HOME/ctvr_mlflow}
CREDENTIALS=$HOME/.mlflow/credentials
RUNS=${CTVR_RUNS:-$HOME/runs}
PORT=${CTVR_MLFLOW_PORT:-5000}
ADDRESS=${CTVR_HEAD_IP:-$(own_address)}
DATABASE=$FOLDER/mlflow.db

fail() {
  echo "services.sh: $*" >&2
  exit 2
}

answers() {
  python -c "import sys, urllib.request as u; u.urlopen('http://$ADDRESS:$PORT/health', timeout=5)" 2>/dev/null
}

configure() {
  umask 077
  mkdir -p "$FOLDER" "$RUNS"
  [ -s "$CREDENTIALS" ] || fail "$CREDENTIALS is missing. Run \`bash cluster/setup.sh secrets\` before \`ray up\`."
  [ -s "$FOLDER/cookie_key" ] || python -c "import secrets; print(secrets.token_hex(32), end='')" >"$FOLDER/cookie_key"
  cat >"$FOLDER/auth.ini" <<END
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///$FOLDER/auth.db
admin_username = $(credential username)
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
END
  echo "export MLFLOW_TRACKING_URI=http://$ADDRESS:$PORT" >"$HOME/.ctvr_services"
}

credential() { # $1: username or password
  sed -n "s/^mlflow_tracking_$1 *= *//p" "$CREDENTIALS"
}

start() {
  configure
  if answers; then
    echo "MLflow answers at http://$ADDRESS:$PORT"
    return
  fi
  # setsid: the server outlives the ssh connection that `ray up` made
  MLFLOW_AUTH_CONFIG_PATH="$FOLDER/auth.ini" \
    MLFLOW_AUTH_ADMIN_PASSWORD="$(credential password)" \
    MLFLOW_FLASK_SERVER_SECRET_KEY="$(cat "$FOLDER/cookie_key")" \
    MLFLOW_DISABLE_TELEMETRY=true \
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
    setsid nohup python -m mlflow server --app-name basic-auth \
    --backend-store-uri "sqlite:///$DATABASE" \
    --artifacts-destination "${CTVR_ARTIFACTS:-$RUNS/mlflow-artifacts}" \
    --host "$ADDRESS" --port "$PORT" --workers 2 \
    --allowed-hosts "$ADDRESS:$PORT,localhost:*,127.0.0.1:*" \
    >"$FOLDER/server.log" 2>&1 </dev/null &
  echo $! >"$FOLDER/pid"
  for _ in $(seq 90); do
    if answers; then
      echo "MLflow started at http://$ADDRESS:$PORT"
      return
    fi
    sleep 2
  done
  fail "MLflow does not answer at http://$ADDRESS:$PORT after 3 minutes. See $FOLDER/server.log."
}

stop() {
  [ -f "$FOLDER/pid" ] || return 0
  kill -- "-$(cat "$FOLDER/pid")" 2>/dev/null || true
  rm -f "$FOLDER/pid"
}

backup() {
  mkdir -p "$RUNS/backup"
  python - "$DATABASE" "$RUNS/backup/mlflow-$(date +%Y%m%d-%H%M%S).db" <<'END'
import sqlite3, sys
source, target = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True), sqlite3.connect(":memory:")
source.backup(target)
open(sys.argv[2], "wb").write(target.serialize())
print(sys.argv[2])
END
}

case "${1:-}" in
  start) start ;;
  stop) stop ;;
  backup) backup ;;
  *) fail "write start, stop or backup." ;;
esac
