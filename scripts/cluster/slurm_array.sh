#!/usr/bin/env bash
# A sweep as a Slurm array job, a shard a task, then the merge:
#
#   job=$(sbatch --parsable --array=0-7 scripts/cluster/slurm_array.sh GRID.yaml OUT)
#   sbatch --dependency=afterany:$job --wrap 'kvsim merge OUT --out OUT'
#
# OUT is a folder that every node sees. Slurm's MaxArraySize (1001 unless configured) bounds the tasks, not the points; 0-999%50 runs at
# most 50 at a time. A killed task goes on where it was when it is submitted again; alone, it needs to be told of how many it is:
# SHARDS=8 sbatch --array=3 ... (from 0). Points that fail stand in the column `error`; the task counts as done. Environment: KVSIM, the
# program (kvsim).
#SBATCH --job-name=kvsim-sweep
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
set -euo pipefail
(($# >= 2)) || { echo "usage: sbatch --array=0-N slurm_array.sh GRID.yaml OUT [options of kvsim sweep]" >&2; exit 2; }
grid=$1 out=$2
shift 2
shard=auto
[[ -z ${SHARDS:-} ]] || shard=$SLURM_ARRAY_TASK_ID/$SHARDS
status=0
"${KVSIM:-kvsim}" sweep "$grid" --shard "$shard" --out "$out" --resume -j "${SLURM_CPUS_PER_TASK:-1}" "$@" || status=$?
((status <= 1)) || exit "$status"
