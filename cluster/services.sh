#!/usr/bin/env bash
# MLflow on the head node, for the nodes of the cluster only.
#
#   services.sh start      start it unless it answers (after `restore`), and pass its address to every later shell
#   services.sh stop
#   services.sh backup     copy its database to the shared folder (CTVR_BACKUPS); the newest 24 copies are kept
#   services.sh restore    take the newest copy if no database exists: a new head, another node
#   services.sh around COMMAND ...    start, run the command with its address, backup, stop
#
# While it runs, a copy is made every CTVR_BACKUP_SECONDS (an hour).
# Its pages, from your own machine: ssh -L 5000:ADDRESS:5000 USER@HEAD (`start` prints ADDRESS), then
# http://localhost:5000; name and password are in ~/.ctvr/mlflow_credentials.
#
# It listens on the head's own address (not on every interface, unless CTVR_MLFLOW_HOST names another), answers to that
# host name only, and requires the password of ~/.mlflow/credentials. The database is on the head's disk, since SQLite
# breaks on NFS; artifacts go to CTVR_ARTIFACTS (a folder or s3://BUCKET/PREFIX), by default into the shared folder
# CTVR_RUNS. MLflow's own jobs are off: they are not needed here, and their seven processes took 1.8 GB.
#
# CTVR_MLFLOW_DATABASE=postgresql://USER:PASSWORD@HOST/NAME is a database server of yours instead, which keeps its own
# backups. It contains a password, so set it in ~/.ctvr_keys (setup.sh). Only this machine needs the driver, psycopg.
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
RECORDS=${CTVR_MLFLOW_DATABASE:-sqlite:///$DATABASE}
BACKUPS=${CTVR_BACKUPS:-$RUNS/backup}
ADDRESS_FILE=${CTVR_SERVICES:-$HOME/.ctvr_services}

fail() {
  echo "services.sh: $*" >&2
  exit 2
}

answers() {
  python -c "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://$ADDRESS:$PORT/health', timeout=5)" \
    2>/dev/null # no proxy: it is this machine
}

is_server() { # the records are on a database server
  [ "$RECORDS" != "sqlite:///$DATABASE" ]
}

check_database() { # the value has a password, so no message shows it
  is_server || return 0
  [[ "$RECORDS" == postgresql://* ]] ||
    fail "CTVR_MLFLOW_DATABASE: must begin with postgresql://. Omit it for SQLite on this machine."
  python -c "import psycopg" 2>/dev/null || # SQLAlchemy's driver for postgresql://
    fail "CTVR_MLFLOW_DATABASE: its driver is not installed. Run \`bash cluster/setup.sh add psycopg[binary]~=3.2\`."
}

configure() {
  umask 077
  check_database
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
  echo "export MLFLOW_TRACKING_URI=http://$ADDRESS:$PORT" >"$ADDRESS_FILE"
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
  restore
  # setsid: the server outlives the ssh connection that `ray up` made. Secrets are no arguments, which all users see
  MLFLOW_BACKEND_STORE_URI="$RECORDS" \
    MLFLOW_AUTH_CONFIG_PATH="$FOLDER/auth.ini" \
    MLFLOW_AUTH_ADMIN_PASSWORD="$(credential password)" \
    MLFLOW_FLASK_SERVER_SECRET_KEY="$(cat "$FOLDER/cookie_key")" \
    MLFLOW_DISABLE_TELEMETRY=true \
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
    setsid nohup python -m mlflow server --app-name basic-auth \
    --artifacts-destination "${CTVR_ARTIFACTS:-$RUNS/mlflow-artifacts}" \
    --host "${CTVR_MLFLOW_HOST:-$ADDRESS}" --port "$PORT" --workers 2 \
    --allowed-hosts "$ADDRESS:$PORT,localhost:*,127.0.0.1:*" \
    >"$FOLDER/server.log" 2>&1 </dev/null &
  echo $! >"$FOLDER/pid"
  for _ in $(seq 300); do
    if answers; then
      if ! is_server; then setsid nohup bash "$0" copies >>"$FOLDER/copies.log" 2>&1 </dev/null & fi
      echo "MLflow started at http://$ADDRESS:$PORT"
      return
    fi
    kill -0 "$(cat "$FOLDER/pid")" 2>/dev/null || fail "MLflow ended while it started: $(tail -1 "$FOLDER/server.log")"
    sleep 2
  done
  fail "MLflow does not answer at http://$ADDRESS:$PORT after 10 minutes. See $FOLDER/server.log."
}

stop() {
  [ -f "$FOLDER/pid" ] || return 0
  kill -- "-$(cat "$FOLDER/pid")" 2>/dev/null || true
  rm -f "$FOLDER/pid"
}

backup() {
  is_server && echo "the database server of CTVR_MLFLOW_DATABASE keeps its own backups" && return
  mkdir -p "$BACKUPS"
  python - "$DATABASE" "$BACKUPS" <<'END'
import os, pathlib, sqlite3, sys, time
source, target = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True), sqlite3.connect(":memory:")
source.backup(target)
folder = pathlib.Path(sys.argv[2])
copy = folder / time.strftime("mlflow-%Y%m%d-%H%M%S.db")
with (folder / "new").open("wb") as file:  # a truncated copy has another name
    file.write(target.serialize())
    file.flush()
    os.fsync(file.fileno())
(folder / "new").replace(copy)
for old in sorted(folder.glob("mlflow-*.db"))[:-24]:
    old.unlink()
print(copy)
END
}

restore() {
  ! is_server || return 0
  local newest
  newest=$(find "$BACKUPS" -name 'mlflow-*.db' 2>/dev/null | sort | tail -1) || true
  [ ! -e "$DATABASE" ] && [ -n "$newest" ] || return 0
  mkdir -p "$FOLDER"
  cp "$newest" "$DATABASE"
  echo "MLflow's database is that of $newest"
}

copies() { # for as long as the server runs
  while kill -0 "$(cat "$FOLDER/pid" 2>/dev/null)" 2>/dev/null; do
    sleep "${CTVR_BACKUP_SECONDS:-3600}" || return
    kill -0 "$(cat "$FOLDER/pid" 2>/dev/null)" 2>/dev/null && backup >/dev/null
  done
}

around() {
  local driver code status= asked
  start >&2
  . "$ADDRESS_FILE"
  set -m # a process group of its own, in which SIGINT is not ignored
  "$@" &
  driver=$!
  set +m
  # At the end of a pod the trials pause. After CTVR_PAUSE_SECONDS a second SIGINT ends the sweep
  trap "asked=1; kill -INT -- -$driver || true; (sleep ${CTVR_PAUSE_SECONDS:-420}; kill -INT -- -$driver) \
    >/dev/null 2>&1 &" TERM INT
  while :; do # the trap ends `wait`, whose status is then not the driver's
    asked=
    wait "$driver" && code=0 || code=$?
    [ "$code" -eq 127 ] && [ -n "$status" ] || status=$code
    [ -n "$asked" ] || break
  done
  trap - TERM INT
  backup >&2 || echo "services.sh: MLflow's database was not copied to $BACKUPS" >&2
  stop
  return "$status"
}

case "${1:-}" in
  start) start ;;
  stop) stop ;;
  backup) backup ;;
  restore) restore ;;
  copies) copies ;;
  around) around "${@:2}" ;;
  *) fail "use start, stop, backup, restore or around." ;;
esac
