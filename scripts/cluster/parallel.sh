#!/usr/bin/env bash
# A sweep with GNU parallel, on this machine or over ssh, then the merge:
#
#   scripts/cluster/parallel.sh GRID.yaml OUT [SHARDS] [options of parallel]
#   scripts/cluster/parallel.sh GRID.yaml /shared/out 32 --sshlogin 8/node1,8/node2 --workdir .
#
# SHARDS: this machine's cores unless given. Over ssh, OUT is a folder that every node sees and kvsim is in PATH there. OUT/joblog has what
# ran where and how long; started again, it goes on where it was. Exit 1: points failed, the column `error` says why. Environment: KVSIM,
# the program (kvsim).
set -euo pipefail
(($# >= 2)) || { echo "usage: parallel.sh GRID.yaml OUT [SHARDS] [options of parallel]" >&2; exit 2; }
grid=$1 out=$2 shards=${3:-$(nproc)}
shift $(($# > 2 ? 3 : 2))
kvsim=${KVSIM:-kvsim}
command -v parallel >/dev/null || { echo "parallel.sh: no GNU parallel: apt-get install parallel" >&2; exit 2; }
mkdir -p "$out"
status=0
seq 0 $((shards - 1)) | parallel "$@" --joblog "$out/joblog" \
  "$(printf '%q ' "$kvsim" sweep "$grid")" --shard "{}/$shards" "$(printf '%q ' --out "$out" --resume -j 1 --quiet)" || status=$?
# parallel counts the jobs that failed; whether a point did (1) or the shard (2 or more, or a signal) is in its log.
if ((status != 0)) && { [[ ! -s $out/joblog ]] || awk -F '\t' 'NR > 1 && ($7 > 1 || $8 != 0) { bad = 1 } END { exit !bad }' "$out/joblog"; }; then
  echo "parallel.sh: shards did not finish, see $out/joblog; start it again to go on" >&2
  exit 2
fi
"$kvsim" merge "$out" --out "$out"
((status == 0)) || exit 1
