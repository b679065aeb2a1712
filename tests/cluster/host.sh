#!/usr/bin/env bash
# One host: pid 1 of its own pid, mount, uts and ipc namespaces, inside a network namespace of its own.
#
#   host.sh NAME FOLDER SHARED TOOLS VISIBLE ...
#
# FOLDER holds what is the host's own (home, tmp, passwd, hosts, sshd_config, keys); SHARED is the file server that all
# hosts mount at /srv/ctvr; VISIBLE are folders of the machine that must stay visible although /tmp is the host's own.
# Nothing of this outlives the process, and nothing of it is seen outside.
set -euo pipefail
name=$1 folder=$2 shared=$3 tools=$4
shift 4

mount --make-rprivate /
mount -t proc proc /proc
hostname "$name"
mount -t tmpfs tmpfs /srv
mkdir /srv/host /srv/ctvr /srv/tools /srv/machine
mount --bind "$folder" /srv/host
mount --bind "$shared" /srv/ctvr
mount --bind "$tools" /srv/tools
mount --rbind /tmp /srv/machine
mount --bind /srv/host/tmp /tmp
for path in "$@"; do
  case "$path" in
    /tmp/*)
      mkdir -p "$path"
      mount --rbind "/srv/machine/${path#/tmp/}" "$path"
      ;;
  esac
done
mount --bind /srv/host/passwd /etc/passwd
mount --bind /srv/host/hosts /etc/hosts
mount --bind /srv/host/resolv.conf "$(readlink -f /etc/resolv.conf)" # no name server: an answer at once
mount -t tmpfs -o size=1g tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd

cd /
/srv/tools/bin/sshd -D -e -f /srv/host/sshd_config 2>/srv/host/sshd.log &
wait # and, as pid 1, bury what is orphaned here
