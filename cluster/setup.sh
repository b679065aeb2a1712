#!/usr/bin/env bash
# Makes a machine a node of the cluster. Every step may be repeated.
#
#   setup.sh secrets                 on your own machine: the two secrets of a cluster, in ~/.ctvr, readable by you alone
#   setup.sh node NAME=VALUE ...     on a node: environment, installation, settings for every later shell
#   setup.sh add PACKAGE ...         on a node: more packages, of the tested versions
#   setup.sh mount HOST:/PATH DIR    on a node: a shared NFS folder (needs sudo), mounted after every start, too
#   setup.sh again                   on a node, before each start of Ray: Ray runs the steps above once in a machine's
#                                    life, and omits them where it was stopped and started or code was edited
#
# CTVR_TORCH_BACKEND chooses the build of torch, by uv's names: auto (by the installed driver), cpu, cu126, ...
# Without it the build of constraints.txt is installed, which needs a recent driver (docs/install.md).
# Settings (CTVR_STORE, CTVR_RUNS, ...) are public: Ray shows them. Keys of an object store without machine
# roles belong in ~/.ctvr_keys on each node, as `export NAME=VALUE` lines, mode 0600.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${CTVR_VENV:-$HOME/ctvr_venv}
UV=${CTVR_UV:-$HOME/ctvr_uv}
PYTHON_VERSION=3.11 # the version that constraints.txt was made with
SETTINGS="CTVR_STORE CTVR_STORAGE CTVR_RUNS CTVR_VIDEOS CTVR_NODES CTVR_GPUS_PER_TRIAL CTVR_CACHE CTVR_CACHE_GB
CTVR_ARTIFACTS CTVR_S3_INSTANCE_ROLE AWS_REGION AWS_ENDPOINT_URL MLFLOW_TRACKING_URI CTVR_TORCH_BACKEND
CTVR_MAX_NODES CTVR_BUDGET_HOURS"
FSTAB=${CTVR_FSTAB:-/etc/fstab}
DEVICES=${CTVR_RDMA_DEVICES:-/sys/class/infiniband} # efa_0, ...: EFA interfaces of an AWS machine
AMAZON=${CTVR_AMAZON:-/opt/amazon} # where AWS installs libfabric (efa) and NCCL's plug-in for it (ofi-nccl)
# Next to it are its signature NAME.sig and AWS's key, whose fingerprint AWS's documentation of EFA lists
EFA_INSTALLER=${CTVR_EFA_INSTALLER:-https://efa-installer.amazonaws.com/aws-efa-installer-1.49.0.tar.gz}
EFA_KEY=${CTVR_EFA_KEY:-4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC}
NFS_OPTIONS=nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport

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
  [ $# -eq 2 ] || fail "mount: pass HOST:/PATH and DIR."
  command -v mount.nfs4 >/dev/null || install_debian nfs-common
  # nofail: a machine whose file system is unavailable still starts, and reports it below
  grep -qs "^$1 $2 " "$FSTAB" || echo "$1 $2 nfs4 $NFS_OPTIONS,_netdev,nofail 0 0" | sudo tee -a "$FSTAB" >/dev/null
  grep -qsx "$1 $2" "$HOME/.ctvr_mounts" || echo "$1 $2" >>"$HOME/.ctvr_mounts"
  bring_mount "$1" "$2"
}

bring_mount() {
  if ! mountpoint -q "$2"; then
    sudo mkdir -p "$2"
    sudo mount -t nfs4 -o "$NFS_OPTIONS" "$1" "$2" ||
      fail "mount: $1 cannot be mounted at $2. Check that its security group admits this machine on port 2049."
  fi
  [ -w "$2" ] || sudo chown "$(id -u):$(id -g)" "$2"
}

install_debian() {
  command -v apt-get >/dev/null || fail "$1 is not installed, and this machine has no apt-get. Install it."
  sudo apt-get -q -o DPkg::Lock::Timeout=300 update
  sudo apt-get -q -y -o DPkg::Lock::Timeout=300 install "$1"
}

write_settings() {
  umask 077
  {
    echo "# written by cluster/setup.sh; changed by \`ray up\`"
    echo "export PATH=\"$VENV/bin:\$PATH\""
    echo "export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 MLFLOW_DISABLE_TELEMETRY=true"
    for word in "$@"; do
      name=${word%%=*}
      [ "$name" != "$word" ] || fail "node: $word is not of the form NAME=VALUE."
      case " ${SETTINGS//$'\n'/ } " in
        *" $name "*) ;;
        *) fail "node: $name is not a setting of a node. Known: ${SETTINGS//$'\n'/ }." ;;
      esac
      printf 'export %s=%q\n' "$name" "${word#*=}"
    done
    has_efa && for folder in "$AMAZON"/efa/lib "$AMAZON"/ofi-nccl/lib "$AMAZON"/ofi-nccl/lib/x86_64-linux-gnu; do
      echo "[ ! -d $folder ] || export LD_LIBRARY_PATH=$folder\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
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

prepare() { # create the folders of videos and of the cache; install what the files require
  [ ! -f "$HOME/.ctvr_env" ] || . "$HOME/.ctvr_env"
  [ -z "${CTVR_CACHE:-}" ] || make_cache
  [ -z "${CTVR_VIDEOS:-}" ] || mkdir -p "$CTVR_VIDEOS" || fail "node: CTVR_VIDEOS=$CTVR_VIDEOS cannot be created."
  install_efa
  install_package
}

has_efa() { compgen -G "$DEVICES/efa_*" >/dev/null; }

install_efa() { # AWS's Deep Learning images have it; without it NCCL uses sockets, and says so only at NCCL_DEBUG=INFO
  local folder
  has_efa || return 0
  [ ! -d "$AMAZON/efa/lib" ] || [ ! -d "$AMAZON/ofi-nccl/lib" ] || return 0
  folder=$(mktemp -d)
  fetch_signed "$EFA_INSTALLER" "${EFA_INSTALLER%/*}/aws-efa-installer.key" "$EFA_KEY" "$folder" ||
    fail "node: $EFA_INSTALLER has no signature of the key $EFA_KEY, so it is not run. Use AWS's Deep Learning image."
  tar xzf "$folder/file" -C "$folder" && (cd "$folder/aws-efa-installer" && sudo ./efa_installer.sh -y) ||
    fail "node: the EFA libraries cannot be installed from $EFA_INSTALLER. Use AWS's Deep Learning image."
  rm -rf "$folder"
}

fetch_signed() { # $1 to $4/file, if $1.sig is its signature by the key at $2 with the fingerprint $3
  local keys=$4/keys
  command -v gpg >/dev/null || install_debian gnupg
  mkdir -m 700 "$keys"
  curl -fsSL -o "$4/file" "$1" && curl -fsSL -o "$4/signature" "$1.sig" && curl -fsSL -o "$4/key" "$2" &&
    gpg --homedir "$keys" --batch -q --import "$4/key" 2>/dev/null &&
    gpg --homedir "$keys" --batch -q --status-fd 3 --verify "$4/signature" "$4/file" 3>"$4/status" 2>/dev/null &&
    grep -Eq "^\[GNUPG:\] VALIDSIG ($3 |.* $3\$)" "$4/status"
}

make_cache() { # a machine's own disks are empty after each start of it, and their mount may be root's
  mkdir -p "$CTVR_CACHE" 2>/dev/null || {
    sudo mkdir -p "$CTVR_CACHE" && sudo chown "$(id -u):$(id -g)" "$CTVR_CACHE"
  } || fail "node: CTVR_CACHE=$CTVR_CACHE cannot be created."
}

install_package() {
  local stamp kept=()
  stamp=$({ cat "$HERE/pyproject.toml" "$HERE/constraints.txt"; printf %s "${CTVR_TORCH_BACKEND:-}"; } |
    sha256sum | cut -d' ' -f1)
  [ "$(cat "$VENV/.ctvr_stamp" 2>/dev/null)" != "$stamp" ] || return 0
  if [ ! -x "$UV/bin/uv" ]; then
    python3 -m venv "$UV" || { install_debian python3-venv && python3 -m venv "$UV"; } ||
      fail "node: python3 has no venv. Install it: sudo apt-get install python3-venv."
    "$UV/bin/pip" install -q --disable-pip-version-check "$(grep -i '^uv==' "$HERE/constraints.txt")"
  fi
  [ -x "$VENV/bin/python" ] || "$UV/bin/uv" venv -q --seed --python "$PYTHON_VERSION" "$VENV"
  [ ! -f "$VENV/.ctvr_added" ] || mapfile -t kept < <(sort -u "$VENV/.ctvr_added")
  install_with_uv -e "${HERE}[all]" ${kept[@]+"${kept[@]}"}
  "$VENV/bin/python" -c "import ctvr.orchestrator.cli.main, ray, torch; from ctvr import methods" || fail "node: the installation is broken."
  echo "$stamp" >"$VENV/.ctvr_stamp"
}

add_packages() {
  [ ! -f "$HOME/.ctvr_env" ] || . "$HOME/.ctvr_env"
  install_with_uv "$@"
  printf '%s\n' "$@" >>"$VENV/.ctvr_added" # to install them again when the files require other versions
}

install_with_uv() {
  local constraints=$HERE/constraints.txt backend=()
  if [ -n "${CTVR_TORCH_BACKEND:-}" ]; then # the pinned CUDA libraries belong to the pinned build
    constraints=$VENV/.ctvr_constraints
    grep -Eiv '^(nvidia-|cuda-|triton)' "$HERE/constraints.txt" >"$constraints"
    backend=(--torch-backend "$CTVR_TORCH_BACKEND")
  fi
  "$UV/bin/uv" pip install -q --compile-bytecode --python "$VENV/bin/python" ${backend[@]+"${backend[@]}"} -c "$constraints" "$@"
}

refuse_while_a_sweep_runs() {
  local folder pid
  for folder in "$HOME"/ctvr_drivers/*/; do
    [ -f "$folder/pid" ] && [ ! -f "$folder/status" ] || continue
    pid=$(cat "$folder/pid")
    if tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q ctvr.orchestrator.cli.detached; then
      fail "again: a sweep is running here (process $pid), and this would end it. Wait, or end it in order first:" \
        "ray exec YAML 'ctvr runs attach --stop'. Its finished tasks are kept."
    fi
  done
}

again() {
  local from to
  refuse_while_a_sweep_runs
  while read -r from to; do bring_mount "$from" "$to"; done < <(cat "$HOME/.ctvr_mounts" 2>/dev/null)
  prepare
  watch_spot
  share_gpus
}

share_gpus() { # NVIDIA's MPS: steps of several trials on one GPU overlap instead of taking turns
  [[ "${CTVR_GPUS_PER_TRIAL:-}" == 0.* ]] && command -v nvidia-cuda-mps-control >/dev/null || return 0
  pgrep -u "$(id -u)" -f nvidia-cuda-mps-control >/dev/null || nvidia-cuda-mps-control -d ||
    echo "setup.sh: MPS did not start; trials that share a GPU take turns" >&2
}

watch_spot() { # for as long as the machine runs; it exits by itself on machines that are not spot machines
  [ -n "${CTVR_METADATA:-}" ] || grep -qs "Amazon EC2" /sys/devices/virtual/dmi/id/board_vendor || return 0
  exec 8>"$HOME/.ctvr_spot.lock" # held by the running one
  if flock -n 8; then setsid nohup bash "$HERE/cluster/drain_on_spot_notice.sh" >>"$HOME/ctvr_spot.log" 2>&1 </dev/null & fi
  exec 8>&-
}

case "${1:-}" in
  secrets) make_secrets ;;
  mount) mount_shared "${@:2}" ;;
  node)
    check_secrets
    write_settings "${@:2}"
    prepare
    ;;
  add) add_packages "${@:2}" ;;
  again) again ;;
  *) fail "use secrets, node, add, mount or again." ;;
esac
