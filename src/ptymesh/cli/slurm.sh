#!/bin/bash
# Written by ptymesh slurm. Submit it with: sbatch THIS_FILE
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
{resources}#SBATCH --time={time}
#SBATCH --signal=B:USR1@{warning}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%j.txt
{account}
# One task per rank: ptymesh reads rank and size from what srun sets. Ranks whose peer has died end by themselves; Slurm
# must not end those that are leaving with status 75.
# {warning} s before the end of the job: every rank writes its part of a checkpoint and leaves with status 75.
step= asked=
trap 'asked=1; [ -n "$step" ] && kill -USR1 "$step" 2>/dev/null' USR1 TERM

if [ -e {checkpoint} ] || [ -e {started} ]; then
    srun --kill-on-bad-exit=0 {cores}{container}ptymesh resume {out} {options}&
else
    srun --kill-on-bad-exit=0 {cores}{container}ptymesh run {recipe} --out {out} {options}&
fi
step=$!
[ -n "$asked" ] && kill -USR1 "$step" 2>/dev/null

# A signal ends the waiting, not the step; of one that has ended, bash remembers how.
while kill -0 "$step" 2>/dev/null; do
    wait "$step"
done
wait "$step"
status=$?

if [ "$status" -eq 75 ]; then
    echo "Interrupted; this job goes back into the queue."
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
