#!/usr/bin/env bash
# A sweep as one Slurm job of many tasks (srun, MPI ranks), then the merge, in one go:
#
#   sbatch --ntasks=8 scripts/cluster/slurm_srun.sh GRID.yaml OUT
#
# OUT is a folder that every node sees; the result is OUT/sweep.csv. Submitted again, it goes on where it was. Exit 1: points failed, the
# column `error` says why. Environment: KVSIM, the program (kvsim).
#SBATCH --job-name=kvsim-sweep
#SBATCH --cpus-per-task=1
set -euo pipefail
(($# >= 2)) || { echo "usage: sbatch --ntasks=N slurm_srun.sh GRID.yaml OUT [options of kvsim sweep]" >&2; exit 2; }
grid=$1 out=$2
shift 2
status=0
srun "${KVSIM:-kvsim}" sweep "$grid" --shard auto --out "$out" --resume -j "${SLURM_CPUS_PER_TASK:-1}" "$@" || status=$?
((status <= 1)) || exit "$status"
"${KVSIM:-kvsim}" merge "$out" --out "$out"
exit "$status"
