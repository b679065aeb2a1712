#!/usr/bin/env bash
# Makes a machine a node of the cluster. Every step may be repeated.
#
#   setup.sh secrets                 on one's own machine: the two secrets of a cluster, in ~/.ctvr, for nobody else
#   setup.sh node NAME=VALUE ...     on a node: environment, installation, settings for every later shell
#   setup.sh add PACKAGE ...         on a node: more packages, of the tested versions
#   setup.sh mount HOST:/PATH DIR    on a node: a shared NFS folder (needs sudo)
#
# Settings (CTVR_STORE, CTVR_RUNS, ...) are public: Ray shows them. Keys of an object store that has no machine
# roles belong into ~/.ctvr_keys on each node, as `export NAME=VALUE` lines, mode 0600.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${CTVR_VENV:-$HOME/ctvr_venv}
UV=${CTVR_UV:-$HOME/ctvr_uv}
PYTHON_VERSION=3.11 # what constraints.txt was made with
SETTINGS="CTVR_STORE CTVR_STORAGE CTVR_RUNS CTVR_VIDEOS CTVR_NODES CTVR_GPUS_PER_TRIAL CTVR_CACHE CTVR_CACHE_GB
CTVR_ARTIFACTS CTVR_S3_INSTANCE_ROLE AWS_REGION AWS_ENDPOINT_URL MLFLOW_TRACKING_URI"

fail() {
  echo "setup.sh: $*" >&2
  exit 2
}

make_secrets() {
  umask 077
  mkdir -p "$HOME/.ctvr"
  chmod 700 "$HOME/.ctvr"
  [ -s "$HOME/.ctvr/ray_token" ] || random 32 >"$HOME/.ctvr/ray_token"
  [ -s "$HOME/.ctvr/mlflow_credentials" ] ||
    printf '[mlflow]\nmlflow_tracking_username = ctvr\nmlflow_tracking_password = %s\n' "$(random 18)" \
      >"$HOME/.ctvr/mlflow_credentials"
  chmod 600 "$HOME/.ctvr/ray_token" "$HOME/.ctvr/mlflow_credentials"
  echo "secrets are in $HOME/.ctvr"
}

random() { # $1 bytes, written in hexadecimal
  python3 -c "import secrets; print(secrets.token_hex($1), end='')"
}

mount_shared() {
  [ $# -eq 2 ] || fail "mount: write HOST:/PATH DIR."
  if ! mountpoint -q "$2"; then
    command -v mount.nfs4 >/dev/null || {
      sudo apt-get -q -o DPkg::Lock::Timeout=300 update
      sudo apt-get -q -y -o DPkg::Lock::Timeout=300 install nfs-common
    }
    sudo mkdir -p "$2"
    sudo mount -t nfs4 -o nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport "$1" "$2" ||
      fail "mount: $1 cannot be mounted at $2. Does its security group let this machine in on port 2049?"
  fi
  [ -w "$2" ] || sudo chown "$(id -u):$(id -g)" "$2"
}

write_settings() {
  umask 077
  {
    echo "# written by cluster/setup.sh; changed by \`ray up\`"
    echo "export PATH=\"$VENV/bin:\$PATH\""
    echo "export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 MLFLOW_DISABLE_TELEMETRY=true"
    for word in "$@"; do
      name=${word%%=*}
      [ "$name" != "$word" ] || fail "node: $word is no NAME=VALUE."
      case " ${SETTINGS//$'\n'/ } " in
        *" $name "*) ;;
        *) fail "node: $name is no setting of a node. Known: ${SETTINGS//$'\n'/ }." ;;
      esac
      printf 'export %s=%q\n' "$name" "${word#*=}"
    done
    echo "[ ! -f \"\$HOME/.ctvr_keys\" ] || . \"\$HOME/.ctvr_keys\""
    echo "[ ! -f \"\$HOME/.ctvr_services\" ] || . \"\$HOME/.ctvr_services\""
  } >"$HOME/.ctvr_env.new"
  mv "$HOME/.ctvr_env.new" "$HOME/.ctvr_env"
  touch "$HOME/.bashrc"
  if ! grep -q ctvr_env "$HOME/.bashrc"; then # at the top: some .bashrc end early
    { echo '[ ! -f ~/.ctvr_env ] || . ~/.ctvr_env'; cat "$HOME/.bashrc"; } >"$HOME/.bashrc.new"
    cat "$HOME/.bashrc.new" >"$HOME/.bashrc" && rm "$HOME/.bashrc.new"
  fi
}

check_secrets() {
  for file in "$HOME/.ray/auth_token" "$HOME/.mlflow/credentials"; do
    [ -s "$file" ] || fail "node: $file is missing. Run \`bash cluster/setup.sh secrets\` before \`ray up\`."
    chmod 600 "$file"
  done
}

install_package() {
  local stamp
  stamp=$(cat "$HERE/pyproject.toml" "$HERE/constraints.txt" | sha256sum | cut -d' ' -f1)
  [ "$(cat "$VENV/.ctvr_stamp" 2>/dev/null)" != "$stamp" ] || return 0
  if [ ! -x "$UV/bin/uv" ]; then
    python3 -m venv "$UV" || fail "node: python3 has no venv. Install it: sudo apt-get install python3-venv."
    "$UV/bin/pip" install -q --disable-pip-version-check "$(grep -i '^uv==' "$HERE/constraints.txt")"
  fi
  [ -x "$VENV/bin/python" ] || "$UV/bin/uv" venv -q --seed --python "$PYTHON_VERSION" "$VENV"
  add_packages -e "$HERE"
  "$VENV/bin/python" -c "import orchestrator.cli.main, methods, ray, torch" || fail "node: the installation is broken."
  echo "$stamp" >"$VENV/.ctvr_stamp"
}

add_packages() {
  "$UV/bin/uv" pip install -q --python "$VENV/bin/python" -c "$HERE/constraints.txt" "$@"
}

case "${1:-}" in
  secrets) make_secrets ;;
  mount) mount_shared "${@:2}" ;;
  node)
    check_secrets
    write_settings "${@:2}"
    install_package
    ;;
  add) add_packages "${@:2}" ;;
  *) fail "write secrets, node, add or mount." ;;
esac
